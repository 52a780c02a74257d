//! Neighbours that go and come back while packets flow.

use std::{thread, time::Duration};

use crate::changes::{RATE, Two, address};
use crate::net::{Kind::*, Stream, turn_alone};

/// Neighbours are forgotten and found again, by hosts and by the router. Alone, as what asks the kernel for a neighbour
/// waits for whoever in the machine changes links just then.
#[test]
fn neighbours_are_found_again() {
    const FLUSHES: u64 = 10;
    let Some(_turn) = turn_alone("neighbours_are_found_again") else { return };
    for kind in [Kernel, Underpass] {
        let net = Two::new(kind);
        let streams = [("10.2.0.2", 4000), ("fd10:2::2", 4001)]
            .map(|(to, port)| Stream::start(&net.hosts[0], &net.hosts[1], address(to), port, RATE));
        for _ in 0..FLUSHES {
            thread::sleep(Duration::from_millis(50));
            net.router.run("ip neigh flush dev two; ip -6 neigh flush dev two");
            net.hosts[0].run("ip neigh flush dev eth0; ip -6 neigh flush dev eth0").unwrap();
        }
        for stream in streams {
            let delivery = stream.end();
            // What waits for a neighbour goes with it, if it is flushed just then.
            assert!(
                delivery.lost() <= FLUSHES && delivery.duplicates == 0,
                "{kind:?}: {delivery:?}{}",
                net.router.log()
            );
        }
        // A neighbour that is not there is told of.
        let outcome = net.hosts[0].outcome("ping -n -c 1 -W 5 10.2.0.77").unwrap();
        assert!(outcome.output.contains("Destination Host Unreachable"), "{kind:?}: {}", outcome.output);
        net.router.stop();
    }
}
