//! HTTP beside the router, for Prometheus and for eyes: `/metrics`, a page that shows the router at work, and
//! `/api/state.json`, which the page reads. Nothing here changes anything.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::{Duration, Instant},
};

use super::{metrics, questions::PATIENCE, state::State};
use crate::limits::patiently;

/// Longest request that is read.
const REQUEST: usize = 8192;
/// Connections that are answered at a time; more are closed.
const CONNECTIONS: usize = 16;
/// How long what was told of the router is told again: however many ask, the control thread is asked so often.
const FRESH: Duration = Duration::from_millis(250);

/// What the page may do: load what lies beside it, nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Files of the page.
const FILES: [(&str, &str, &str); 4] = [
    ("/", HTML, include_str!("../web/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("../web/app.js")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../web/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("../web/icon.svg")),
];

/// Who answers.
pub struct Web<F> {
    ask: F,
    last: Mutex<Option<(Instant, Arc<State>)>>,
}

/// What is answered.
struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl<F: Fn() -> io::Result<State> + Send + Sync + 'static> Web<F> {
    /// `ask` tells what there is to see.
    pub fn new(ask: F) -> Arc<Self> {
        Arc::new(Self { ask, last: Mutex::new(None) })
    }

    /// Answers those who connect, each in a thread of its own: who is slow holds up nobody else.
    pub fn listen(self: &Arc<Self>, listener: &TcpListener) {
        let open = Arc::new(AtomicUsize::new(0));
        for connection in patiently(listener.incoming(), "a request for metrics") {
            if open.load(Acquire) >= CONNECTIONS {
                continue;
            }
            open.fetch_add(1, Relaxed);
            let (web, closed) = (Arc::clone(self), Arc::clone(&open));
            let thread = thread::Builder::new().name("web-client".to_owned()).spawn(move || {
                if let Err(error) = web.serve(&connection) {
                    tracing::debug!("a request for metrics: {error}");
                }
                closed.fetch_sub(1, Release);
            });
            if thread.is_err() {
                open.fetch_sub(1, Release);
            }
        }
    }

    fn serve(&self, mut connection: &TcpStream) -> io::Result<()> {
        connection.set_write_timeout(Some(PATIENCE))?;
        let request = read(connection, PATIENCE)?;
        let here = connection.local_addr()?.ip();
        let Answer { status, kind, body } = self.answer(&request, here).unwrap_or_else(|error| {
            let body = format!("the router does not answer: {error}\n");
            Answer { status: "503 Service Unavailable", kind: TEXT, body }
        });
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
             Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
        );
        connection.write_all(head.as_bytes())?;
        connection.write_all(body.as_bytes())
    }

    fn answer(&self, request: &str, here: IpAddr) -> io::Result<Answer> {
        let say = |status, text: &str| Answer { status, kind: TEXT, body: format!("{text}\n") };
        let mut words = request.lines().next().unwrap_or_default().split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if method != "GET" {
            return Ok(say("405 Method Not Allowed", "only GET"));
        }
        let path = target.split('?').next().unwrap_or_default();
        // A page of somebody else's whose name leads here (DNS rebinding) is not to read it.
        if here.is_loopback() && !is_own_name(request) {
            return Ok(say("421 Misdirected Request", "ask by an address, or as localhost"));
        }
        if path == "/metrics" {
            let body = metrics::render(&*self.state()?).map_err(io::Error::other)?;
            return Ok(Answer { status: "200 OK", kind: metrics::KIND, body });
        }
        if path == "/api/state.json" {
            let body = serde_json::to_string(&*self.state()?)?;
            return Ok(Answer { status: "200 OK", kind: "application/json", body });
        }
        match FILES.iter().find(|(known, ..)| *known == path) {
            Some((_, kind, text)) => Ok(Answer { status: "200 OK", kind, body: (*text).to_owned() }),
            None => Ok(say("404 Not Found", "try /, /metrics or /api/state.json")),
        }
    }

    /// What there is to see, not older than [`FRESH`].
    fn state(&self) -> io::Result<Arc<State>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, state)) = &*last
            && when.elapsed() < FRESH
        {
            return Ok(Arc::clone(state));
        }
        let state = Arc::new((self.ask)()?);
        *last = Some((Instant::now(), Arc::clone(&state)));
        Ok(state)
    }
}

/// Reads the head of a request, which must have come in time as a whole.
fn read(mut connection: &TcpStream, patience: Duration) -> io::Result<String> {
    let deadline = Instant::now() + patience;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        connection.set_read_timeout(Some(left))?;
        let length = connection.read(&mut part)?;
        if length == 0 || request.len() + length > REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.extend_from_slice(&part[..length]);
    }
    String::from_utf8(request).map_err(io::Error::other)
}

/// Whether the request names this host by an address, or as `localhost`.
fn is_own_name(request: &str) -> bool {
    let host = request.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });
    let Some(host) = host else { return true };
    // An IPv6 address is in brackets, and has colons of its own.
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::atomic::AtomicU64};

    use super::*;

    #[test]
    fn what_is_answered() {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let web = Web::new(|| {
            ASKED.fetch_add(1, Relaxed);
            Ok(State { version: "7".into(), ..State::default() })
        });
        let ask = |line: &str, host: &str| {
            let request = format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let answer = web.answer(&request, Ipv4Addr::LOCALHOST.into()).unwrap();
            (answer.status.get(..3).unwrap().parse::<u16>().unwrap(), answer.kind, answer.body)
        };
        for (line, host, status) in [
            ("GET /", "127.0.0.1:9117", 200),
            ("GET /app.js", "[::1]:9117", 200),
            ("GET /style.css", "localhost", 200),
            ("GET /metrics", "prometheus.example", 421),
            ("GET /metrics", "127.0.0.1:9117", 200),
            ("GET /metrics?x=1", "localhost", 200),
            ("GET /api/state.json", "localhost:9117", 200),
            ("GET /api/state.json", "evil.example:9117", 421),
            ("GET /", "evil.example", 421),
            ("GET /../Cargo.toml", "localhost", 404),
            ("POST /metrics", "localhost", 405),
            ("PUT /api/state.json", "localhost", 405),
            ("", "localhost", 405),
        ] {
            assert_eq!(ask(line, host).0, status, "{line} {host}");
        }
        let (_, kind, body) = ask("GET /api/state.json", "localhost");
        assert_eq!(kind, "application/json");
        assert_eq!(serde_json::from_str::<State>(&body).unwrap().version, "7");
        assert_eq!(ASKED.load(Relaxed), 1, "asked once for all of them");
    }

    /// The page loads nothing from elsewhere, and needs nothing that its policy forbids.
    #[test]
    fn files_are_of_the_house() {
        for (path, _, text) in FILES {
            for foreign in ["http://", "https://", "//cdn", "eval(", "innerHTML", "document.write"] {
                // The name of SVG's elements is no address that is asked.
                let text = text.replace("http://www.w3.org/2000/svg", "");
                assert!(!text.contains(foreign), "{path} has {foreign}");
            }
        }
        assert!(!FILES[0].2.contains("style=") && !FILES[0].2.contains("onclick"));
    }
}
