//! Codecs for rtnetlink and generic netlink.
