//! What a request costs does not grow with what it does not concern.

use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as Message;

use super::common::{Lab, address, up};

/// The index of the link v0, which [`Lab::new`] makes first behind lo.
const V0: u32 = 2;

/// How long it takes to delete 100 addresses of one link, the first first, while there are so many other links, which are up
/// and have no address.
fn deletion_beside(links: u32) -> Duration {
    let mut lab = Lab::new();
    lab.change(up(V0), 0).unwrap();
    for index in 100..100 + links {
        lab.make(&format!("d{index}"), "dummy", index, &[]);
        lab.change(up(index), 0).unwrap();
    }
    let local = |n: u32| format!("10.0.{n}.1");
    for n in 0..100 {
        lab.change(address(V0, &local(n), 24), NLM_F_CREATE | NLM_F_EXCL).unwrap();
    }
    let began = Instant::now();
    for n in 0..100 {
        let Message::NewAddress(address) = address(V0, &local(n), 24) else { unreachable!() };
        lab.change(Message::DelAddress(address), 0).unwrap();
    }
    began.elapsed()
}

#[test]
fn addresses_deleted_beside_many_links() {
    let [few, many] = [50, 800].map(|links| (0..3).map(|_| deletion_beside(links)).min().unwrap());
    println!("beside 50 links {few:?}, beside 800 {many:?}");
    assert!(many < few * 3, "beside 50 links {few:?}, beside 800 {many:?}");
}
