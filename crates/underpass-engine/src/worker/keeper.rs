//! Who knows which frames the kernel beside the router keeps.

/// Whose a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// The router's.
    No,
    /// The kernel's.
    Yes,
    /// The router's, which drops it; and the kernel may know somebody for it.
    Copy,
}

/// Says which frames the kernel keeps.
pub trait Keeper: Send {
    /// Whose this frame is, which has come in by the device with this index.
    fn kept(&mut self, ifindex: u32, frame: &[u8]) -> Kept;
}
