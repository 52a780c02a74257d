//! Where packets come from and go.
