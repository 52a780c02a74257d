//! AF_XDP without a C library: memory, rings, sockets, and BPF to load and attach the program of
//! [`crate::kernel_frames`].

pub(crate) mod assembler;
pub(crate) mod bpf;
mod btf;
mod flood;
pub(crate) mod program;
mod ring;
mod sink;
pub(crate) mod socket;
pub(crate) mod tunnel;
mod umem;

pub use flood::{Flood, receive_by_polling};
pub use sink::{DriverSink, Sink};
pub use umem::{LONGEST, Memory};
