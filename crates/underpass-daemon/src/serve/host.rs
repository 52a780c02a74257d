//! What answers the programs: a router alone, or one beside the kernel.

use std::borrow::Cow;

use underpass_control::{Client, Owner, Replies, Router};
use underpass_netlink::Message;

/// The router, and what stands between it and the kernel where there is one.
///
/// All methods but [`Host::router`] have the meaning of a router that nothing stands beside, or that needs no help.
pub trait Host {
    /// The router.
    fn router(&mut self) -> &mut Router;

    /// Takes in what the kernel has reported its own objects. Called before each message is looked at, so that
    /// the router knows what the message before it has changed in the kernel.
    fn catch_up(&mut self) {}

    /// Who answers a message. Only asked where the server serves beside the kernel.
    fn owner(&mut self, client: &Client, message: &Message<'_>) -> Owner {
        underpass_control::owner(self.router(), client.protocol, message)
    }

    /// What a program is shown of a message of rtnetlink that the kernel sends it; `None` for nothing.
    fn translate<'a>(&mut self, message: &Message<'a>) -> Option<Cow<'a, [u8]>> {
        underpass_control::translate(self.router(), message)
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
