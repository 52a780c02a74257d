//! The router beside the kernel, as the netlink server sees it.

use underpass_control::{Client, Replies, Router};

use super::Live;
use crate::serve::Host;

impl Host for Live {
    fn router(&mut self) -> &mut Router {
        &mut self.router
    }

    fn catch_up(&mut self) {
        if let Err(error) = self.kernel.catch_up(&mut self.router) {
            tracing::error!("the kernel's tables cannot be followed: {error}");
        }
        self.router.tell_of_links();
        self.follow();
    }

    fn request(&mut self, client: &mut Client, messages: &[u8], replies: &mut Replies) {
        self.router.request(client, messages, replies);
        // What the kernel has done for it.
        self.catch_up();
    }
}
