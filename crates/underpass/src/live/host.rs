//! The router beside the kernel, as the netlink server sees it.

use std::borrow::Cow;

use underpass_control::{Client, Replies, Router};
use underpass_netlink::Message;

use super::Live;
use crate::serve::{Fate, Host, Owner};

impl Host for Live {
    fn router(&mut self) -> &mut Router {
        &mut self.router
    }

    fn catch_up(&mut self) {
        if let Err(error) = self.kernel.catch_up(&mut self.router) {
            tracing::error!("the kernel's tables cannot be followed: {error}");
        }
        self.follow();
    }

    fn owner(&mut self, client: &Client, message: &Message<'_>) -> Owner {
        match self.router.owner(client.protocol, message) {
            underpass_control::Owner::Router => Owner::Router,
            underpass_control::Owner::Kernel => Owner::Kernel,
            underpass_control::Owner::Both => Owner::Both,
        }
    }

    fn translate(&mut self, message: &Message<'_>) -> Fate {
        match self.router.translate(message) {
            Some(Cow::Borrowed(_)) => Fate::Keep,
            Some(Cow::Owned(bytes)) => Fate::Replace(bytes),
            None => Fate::Drop,
        }
    }

    fn request(&mut self, client: &mut Client, messages: &[u8], replies: &mut Replies) {
        self.router.request(client, messages, replies);
        self.follow();
    }
}
