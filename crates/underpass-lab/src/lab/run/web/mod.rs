//! The page of a network: all its nodes and links, and a flow across them. Nothing here changes anything.

mod flow;
mod follow;
mod relay;
mod watch;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use underpass_daemon::{
    history::{self, History},
    http::{self, Answer, File, HTML, JSON, Request, SCRIPT, SHARED, STYLE},
    query,
};

pub use relay::{METRICS, lead};
pub use watch::{Lab, Watched, socket};

/// How long what was told is told again: however many ask, the routers are asked so often.
const FRESH: Duration = Duration::from_millis(500);
/// Rates that are remembered for an hour, at most: 24 megabytes.
const SERIES: usize = 8000;

/// Files of the page.
const FILES: [File; 3] = [
    ("/", HTML, include_str!("index.html")),
    ("/network.js", SCRIPT, include_str!("network.js")),
    ("/network.css", STYLE, include_str!("network.css")),
];

/// Who answers.
struct Site {
    lab: Lab,
    /// What was told last, as JSON.
    last: Mutex<Option<(Instant, Arc<str>)>>,
    history: Mutex<History>,
    /// Held while a flow is followed: a router follows for one at a time.
    following: Mutex<()>,
}

/// Serves the page of a network at a port of 127.0.0.1, as long as this process lives.
///
/// # Errors
/// Those of bind(2), with the port; there can be no thread.
pub fn serve(lab: Lab, port: u16) -> anyhow::Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = TcpListener::bind(address).with_context(|| format!("--web: {address}"))?;
    let site = Arc::new(Site {
        lab,
        last: Mutex::default(),
        history: Mutex::new(History::with_room(SERIES)),
        following: Mutex::default(),
    });
    let remembering = Arc::clone(&site);
    thread::Builder::new().name("history".to_owned()).spawn(move || {
        loop {
            let network = remembering.lab.look();
            lock(&remembering.history).read(network.time, network.counters());
            thread::sleep(history::STEP);
        }
    })?;
    thread::Builder::new().name("web".to_owned()).spawn(move || {
        http::listen(&listener, Arc::new(move |request: &Request<'_>| site.answer(request)));
    })?;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Site {
    fn answer(&self, request: &Request<'_>) -> io::Result<Answer> {
        match request.path {
            "/api/network.json" => Ok(Answer::ok(JSON, &*self.network()?)),
            "/api/history.json" => Ok(Answer::ok(JSON, self.told_history(request)?)),
            "/api/routes.json" => Ok(self.routes(request)),
            "/api/follow.json" => self.follow(request),
            path => {
                let file = Answer::file(FILES.iter().chain(&SHARED), path);
                Ok(file.unwrap_or_else(|| Answer::not_found("try / or /api/network.json")))
            }
        }
    }

    /// What there is to see, not older than [`FRESH`].
    fn network(&self) -> io::Result<Arc<str>> {
        let mut last = lock(&self.last);
        if let Some((when, told)) = &*last
            && when.elapsed() < FRESH
        {
            return Ok(Arc::clone(told));
        }
        let told: Arc<str> = serde_json::to_string(&self.lab.look())?.into();
        *last = Some((Instant::now(), Arc::clone(&told)));
        Ok(told)
    }

    /// The last hour of a node; without one, what all nodes have received and dropped.
    fn told_history(&self, request: &Request<'_>) -> serde_json::Result<String> {
        let node = request.parameter("node");
        let wanted = |name: &str| {
            let mut words = name.split(' ');
            let (kind, owner) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let owner = if kind == "end" { owner.split(':').next().unwrap_or_default() } else { owner };
            node.as_ref().map_or_else(
                || kind == "node" || kind == "drop" || name.contains(" drop "),
                |node| node == owner,
            )
        };
        serde_json::to_string(&lock(&self.history).told(wanted))
    }

    fn routes(&self, request: &Request<'_>) -> Answer {
        let name = request.parameter("node").unwrap_or_default();
        let socket =
            self.lab.nodes.iter().find(|node| node.name == name).and_then(|node| node.socket.as_ref());
        let Some(socket) = socket else {
            return Answer::not_found(&format!("there is no router '{name}'"));
        };
        match query::answer(socket, "routes") {
            Ok(text) => Answer::ok(JSON, text),
            Err(error) => Answer::refused("503 Service Unavailable", &format!("{error:#}")),
        }
    }

    fn follow(&self, request: &Request<'_>) -> io::Result<Answer> {
        // A page of another site may not have routers follow packets, though it could not read what they say.
        if !request.own {
            return Ok(Answer::refused("403 Forbidden", "only the page itself may ask for this"));
        }
        let mut ends = Vec::new();
        for name in ["from", "to"] {
            let text = request.parameter(name).unwrap_or_default();
            let Some(end) = follow::addresses(&self.lab, text.trim()) else {
                let why = format!("'{text}' is neither a node nor an address");
                return Ok(Answer::refused("400 Bad Request", &why));
            };
            ends.push(end);
        }
        let [(source, from), (_, to)] = &ends[..] else { return Err(io::ErrorKind::InvalidInput.into()) };
        let pairs = flow::pairs(from, to);
        if pairs.is_empty() {
            return Ok(Answer::refused("400 Bad Request", "the two have no addresses of one family"));
        }
        let Ok(_turn) = self.following.try_lock() else {
            return Ok(Answer::refused(
                "409 Conflict",
                "a flow is followed just now: ask again in some seconds",
            ));
        };
        let followed = follow::follow(&self.lab, &pairs, *source);
        Ok(Answer::ok(JSON, serde_json::to_string(&followed)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_of_the_house() {
        assert_eq!(http::are_of_the_house(&FILES), Ok(()));
    }
}
