//! The whole model as lines, feature by feature.

use crate::Router;
use crate::save::{Elsewhere, Save, Saved};

impl Router {
    /// Lines that make the state of this router in another one.
    pub fn save(&self, elsewhere: &dyn Elsewhere) -> Saved {
        let mut save = Save::new(self, elsewhere);
        save.section("Variables");
        crate::sysctl::save::save_common(&mut save);
        save.section("Links");
        crate::link::save::save_links(&mut save);
        save.section("Variables of links");
        crate::sysctl::save::save_of_links(&mut save);
        save.section("SRv6");
        crate::hmac::save::save(&mut save);
        save.section("IOAM");
        crate::ioam::save::save(&mut save);
        for (last, title) in [(false, "Addresses"), (true, "Links whose addresses are made of others")] {
            save.section(title);
            crate::link::save::save_up(&mut save, last);
            crate::address::save::save(&mut save, last);
        }
        save.section("Foo-over-UDP");
        crate::fou::save::save(&mut save);
        save.section("Stations of bridges");
        crate::link::bridge::save::save_stations(&mut save);
        crate::link::tunnel::vxlan::fdb::save_stations(&mut save);
        save.section("Neighbours");
        crate::neighbour::save::save(&mut save);
        save.section("Next hops and routes");
        crate::route::save::save(&mut save);
        save.section("Labels");
        crate::route::mpls::save::save(&mut save);
        save.section("Rules");
        crate::route::rule::save::save(&mut save);
        save.section("MTUs that are too small for IPv6");
        crate::link::save::save_mtus(&mut save);
        save.section("Queueing disciplines");
        crate::tc::save::save_qdiscs(&mut save);
        save.section("Actions and filters");
        crate::tc::save::save_filters(&mut save);
        save.done()
    }
}
