//! What bridges of the router's with spanning trees hear from other bridges, and say to them.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use underpass_control::Router;
use underpass_port::link_frames::LinkFrames;

use super::events::{Events, Source};

/// Most frames that are heard before something else is done.
const AT_ONCE: usize = 256;

/// The longest frame of 802.3, without its checksum.
const FRAME: usize = 1514;

/// How long to wait before the socket is tried again.
const PATIENCE: Duration = Duration::from_secs(1);

/// The socket by which bridges hear each other, while there are spanning trees.
#[derive(Default)]
pub struct SpanningTrees {
    frames: Option<LinkFrames>,
    /// When it is tried again, after it could not be opened.
    again: Option<Instant>,
    /// The ports at which bridges are heard.
    ports: BTreeSet<u32>,
    /// When trees have something to do.
    due: Option<Instant>,
}

impl SpanningTrees {
    /// Opens and closes the socket as it is needed, does what the time has come for, and sends what there is to say. Whether
    /// the time had come for something.
    pub fn follow(&mut self, router: &mut Router, events: &Events) -> bool {
        let was_due = self.due.is_some_and(|at| at <= Instant::now());
        let left = router.pass_spanning_trees();
        self.due = Instant::now().checked_add(left);
        self.ports = router.spanning_tree_ports().collect();
        if self.ports.is_empty() {
            (self.frames, self.again) = (None, None);
        } else if self.frames.is_none() && self.again.is_none_or(|at| at <= Instant::now()) {
            self.open(events);
        }
        for (port, frame) in router.take_bridge_frames() {
            let sent = self.frames.as_ref().map(|frames| frames.send(port, &frame));
            if let Some(Err(error)) = sent {
                tracing::debug!("device {port}: a bridge could not tell others about its tree: {error}");
            }
        }
        was_due
    }

    fn open(&mut self, events: &Events) {
        let opened = LinkFrames::without_ethertype();
        let added = opened.and_then(|frames| events.add(Source::Bridges, &frames).map(|()| frames));
        match added {
            Ok(frames) => (self.frames, self.again) = (Some(frames), None),
            Err(error) => {
                if self.again.is_none() {
                    tracing::warn!("spanning trees do not hear other bridges: {error}");
                }
                self.again = Instant::now().checked_add(PATIENCE);
            }
        }
    }

    /// Hears what has come in.
    pub fn hear(&self, router: &mut Router) {
        let Some(frames) = &self.frames else { return };
        let mut frame = [0; FRAME];
        for _ in 0..AT_ONCE {
            match frames.receive(&mut frame) {
                Ok(Some((port, length))) if self.ports.contains(&port) => {
                    router.hear_bridge(port, &frame[..length.min(FRAME)]);
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => tracing::debug!("spanning trees: {error}"),
            }
        }
    }

    /// How long to wait at most.
    pub fn due(&self) -> Duration {
        let wait = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(Instant::now()));
        wait(self.due).into_iter().chain(wait(self.again)).min().unwrap_or(Duration::MAX)
    }
}
