//! Routes that the kernel has from router advertisements. A router follows none, unless `accept_ra` is 2 (RFC 4861
//! section 6.2.1, Linux's `ipv6_accept_ra`). The kernel beside the router is a host where its `forwarding` is 0, and
//! has them: they are for what it sends itself.
//!
//! Where `accept_ra` is 0 somebody else has put them there, who knows.
