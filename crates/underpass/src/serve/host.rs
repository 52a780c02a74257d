//! What answers the programs: a router alone, or one beside the kernel.

use underpass_control::{Client, Replies, Router};
use underpass_netlink::Message;

/// Who answers a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The router.
    Router,
    /// The kernel.
    Kernel,
    /// Both: a dump of what each has.
    Both,
}

/// What becomes of a message of the kernel on its way to a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// The program gets it.
    Keep,
    /// The program does not get it.
    Drop,
    /// The program gets this one instead.
    Replace(Vec<u8>),
}

/// The router, and what stands between it and the kernel where there is one.
///
/// All methods but [`Host::router`] have the meaning of a router alone.
pub trait Host {
    /// The router.
    fn router(&mut self) -> &mut Router;

    /// Takes in what the kernel has told of its own objects. Called before each message is looked at, so that
    /// the router knows what the message before it has changed in the kernel.
    fn catch_up(&mut self) {}

    /// Who answers a message. Only asked where the server serves beside the kernel.
    fn owner(&mut self, client: &Client, message: &Message<'_>) -> Owner {
        let _ = (client, message);
        Owner::Router
    }

    /// What a program gets for a message of rtnetlink that the kernel sends it, as an answer or a notification.
    fn translate(&mut self, message: &Message<'_>) -> Fate {
        let _ = message;
        Fate::Keep
    }

    /// Answers messages that are the router's, and does in the kernel what follows from them.
    fn request(&mut self, client: &mut Client, messages: &[u8], replies: &mut Replies) {
        self.router().request(client, messages, replies);
    }
}

impl Host for Router {
    fn router(&mut self) -> &mut Router {
        self
    }
}
