//! A userspace router for the tunnels and traffic controls of Linux.
fn main() {}
