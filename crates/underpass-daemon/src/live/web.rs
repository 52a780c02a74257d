//! HTTP beside the router, for Prometheus and for eyes: `/metrics`, a page that shows the router at work, and the documents
//! that the page reads. Nothing here changes anything.

use std::{
    io,
    net::TcpListener,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::{metrics, queries::Answer as Told, state::State, stats::Topic};
use crate::{
    history::{self, History},
    http::{self, Answer, File, HTML, JSON, Request, SCRIPT, SHARED},
};

/// How long what was told of the router is told again: however many ask, the control thread is asked so often.
const FRESH: Duration = Duration::from_millis(250);

/// Files of the page.
const FILES: [File; 2] =
    [("/", HTML, include_str!("../web/index.html")), ("/app.js", SCRIPT, include_str!("../web/app.js"))];

/// Who answers.
pub struct Web<F> {
    ask: F,
    last: Mutex<Option<(Instant, Arc<State>)>>,
    routes: Mutex<Option<(Instant, String)>>,
    history: Mutex<History>,
}

/// Answers those who connect, and remembers how rates went.
///
/// # Errors
/// There can be no thread.
pub fn serve<F>(web: Web<F>, listener: &TcpListener) -> io::Result<()>
where
    F: Fn(Topic) -> io::Result<Told> + Send + Sync + 'static,
{
    let web = Arc::new(web);
    let remembering = Arc::clone(&web);
    thread::Builder::new().name("history".to_owned()).spawn(move || {
        loop {
            remembering.remember();
            thread::sleep(history::STEP);
        }
    })?;
    http::listen(listener, Arc::new(move |request: &Request<'_>| web.answer(request)));
    Ok(())
}

impl<F: Fn(Topic) -> io::Result<Told>> Web<F> {
    /// `ask` tells what there is to see.
    pub fn new(ask: F) -> Self {
        Self { ask, last: Mutex::default(), routes: Mutex::default(), history: Mutex::default() }
    }

    fn answer(&self, request: &Request<'_>) -> io::Result<Answer> {
        match request.path {
            "/metrics" => {
                let body = metrics::render(&*self.state()?).map_err(io::Error::other)?;
                Ok(Answer::ok(metrics::KIND, body))
            }
            "/api/state.json" => Ok(Answer::ok(JSON, serde_json::to_string(&*self.state()?)?)),
            "/api/routes.json" => Ok(Answer::ok(JSON, self.routes()?)),
            "/api/history.json" => {
                let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(Answer::ok(JSON, serde_json::to_string(&history.told(|_| true))?))
            }
            path => {
                let file = Answer::file(FILES.iter().chain(&SHARED), path);
                Ok(file.unwrap_or_else(|| Answer::not_found("try /, /metrics or /api/state.json")))
            }
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
        let Told::State(state) = (self.ask)(Topic::State)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let state: Arc<State> = Arc::from(state);
        *last = Some((Instant::now(), Arc::clone(&state)));
        Ok(state)
    }

    /// The routes, not older than a second: there may be many.
    fn routes(&self) -> io::Result<String> {
        let mut last = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, routes)) = &*last
            && when.elapsed() < Duration::from_secs(1)
        {
            return Ok(routes.clone());
        }
        let routes = serde_json::to_string(&(self.ask)(Topic::Routes)?)?;
        *last = Some((Instant::now(), routes.clone()));
        Ok(routes)
    }

    fn remember(&self) {
        // A router that does not answer leaves a gap. What is read here is told to nobody as new.
        let Ok(Told::State(state)) = (self.ask)(Topic::State) else { return };
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.read(state.time, state.counters());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        sync::atomic::{AtomicU64, Ordering::Relaxed},
    };

    use super::*;

    #[test]
    fn what_is_answered() {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let web = Web::new(|topic| match topic {
            Topic::Routes => Ok(Told::Routes(Box::default())),
            _ => {
                ASKED.fetch_add(1, Relaxed);
                Ok(Told::State(Box::new(State { version: "7".into(), ..State::default() })))
            }
        });
        let ask = |line: &str, host: &str| {
            let request = format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let site = |request: &Request<'_>| web.answer(request);
            let answer = http::answer(&request, Ipv4Addr::LOCALHOST.into(), &site);
            let (status, kind, body) = answer.parts();
            (status.get(..3).unwrap().parse::<u16>().unwrap(), kind, body.to_owned())
        };
        for (line, host, status) in [
            ("GET /", "127.0.0.1:9117", 200),
            ("GET /app.js", "[::1]:9117", 200),
            ("GET /style.css", "localhost", 200),
            ("GET /metrics", "prometheus.example", 421),
            ("GET /metrics", "127.0.0.1:9117", 200),
            ("GET /metrics?x=1", "localhost", 200),
            ("GET /api/state.json", "localhost:9117", 200),
            ("GET /api/routes.json", "localhost:9117", 200),
            ("GET /api/history.json", "localhost:9117", 200),
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

    #[test]
    fn files_are_of_the_house() {
        assert_eq!(http::are_of_the_house(FILES.iter().chain(&SHARED)), Ok(()));
    }
}
