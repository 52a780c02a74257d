//! HTTP for pages that show what runs here and change nothing: only GET is answered, to those who name the server as what it
//! is, and what is answered may load nothing from elsewhere.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::{Duration, Instant},
};

use crate::limits::patiently;

/// Longest request that is read.
const REQUEST: usize = 8192;
/// Connections that are answered at a time; more are closed.
const CONNECTIONS: usize = 16;
/// How long a request may take to come, and its answer to go.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the page may do: load what lies beside it, nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Content-Type of a page.
pub const HTML: &str = "text/html; charset=utf-8";
/// Content-Type of a script.
pub const SCRIPT: &str = "text/javascript; charset=utf-8";
/// Content-Type of a style sheet.
pub const STYLE: &str = "text/css; charset=utf-8";
/// Content-Type of a document for programs.
pub const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file of a page: its path, its Content-Type, what it has.
pub type File = (&'static str, &'static str, &'static str);

/// Files that all pages share.
pub const SHARED: [File; 3] = [
    ("/common.js", SCRIPT, include_str!("web/common.js")),
    ("/style.css", STYLE, include_str!("web/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("web/icon.svg")),
];

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The path.
    pub path: &'a str,
    /// What follows `?`.
    query: &'a str,
    /// Whether a page of this server asks, or no page.
    pub own: bool,
}

impl Request<'_> {
    /// The value of a parameter, without its escapes.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
    }
}

/// What is answered.
#[derive(Debug)]
pub struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    /// 200 with a body of this media type.
    pub fn ok(kind: &'static str, body: impl Into<String>) -> Self {
        Self { status: "200 OK", kind, body: body.into() }
    }

    /// A sentence about what cannot be had.
    pub fn refused(status: &'static str, text: &str) -> Self {
        Self { status, kind: TEXT, body: format!("{text}\n") }
    }

    /// There is no such path.
    pub fn not_found(text: &str) -> Self {
        Self::refused("404 Not Found", text)
    }

    /// One of these files; `None`: there is none of that path.
    pub fn file<'a>(files: impl IntoIterator<Item = &'a File>, path: &str) -> Option<Self> {
        let mut found = files.into_iter().filter(|(known, ..)| *known == path);
        found.next().map(|(_, kind, text)| Self::ok(kind, *text))
    }

    /// The status, its Content-Type and what it says.
    pub fn parts(&self) -> (&'static str, &'static str, &str) {
        (self.status, self.kind, &self.body)
    }
}

/// Answers those who connect as `site` says, each in a thread of its own: who is slow holds up nobody else. Never returns.
pub fn listen<S>(listener: &TcpListener, site: Arc<S>)
where
    S: Fn(&Request<'_>) -> io::Result<Answer> + Send + Sync + 'static,
{
    let open = Arc::new(AtomicUsize::new(0));
    for connection in patiently(listener.incoming(), "a request to the page") {
        if open.load(Acquire) >= CONNECTIONS {
            continue;
        }
        open.fetch_add(1, Relaxed);
        let (site, closed) = (Arc::clone(&site), Arc::clone(&open));
        let thread = thread::Builder::new().name("web-client".to_owned()).spawn(move || {
            if let Err(error) = serve(&connection, &*site) {
                tracing::debug!("a request to the page: {error}");
            }
            closed.fetch_sub(1, Release);
        });
        if thread.is_err() {
            open.fetch_sub(1, Release);
        }
    }
}

fn serve(mut connection: &TcpStream, site: &impl Fn(&Request<'_>) -> io::Result<Answer>) -> io::Result<()> {
    connection.set_write_timeout(Some(PATIENCE))?;
    let request = read(connection, PATIENCE)?;
    let here = connection.local_addr()?.ip();
    let Answer { status, kind, body } = answer(&request, here, site);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
         Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes())?;
    connection.write_all(body.as_bytes())
}

/// What a request that came to the address `here` is answered.
pub(crate) fn answer(
    request: &str,
    here: IpAddr,
    site: &impl Fn(&Request<'_>) -> io::Result<Answer>,
) -> Answer {
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "GET" {
        return Answer::refused("405 Method Not Allowed", "only GET");
    }
    // A page of somebody else's whose name leads here (DNS rebinding) is not to read it.
    if here.is_loopback() && !is_own_name(request) {
        return Answer::refused("421 Misdirected Request", "ask by an address, or as localhost");
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let own = field(request, "sec-fetch-site").is_none_or(|site| ["same-origin", "none"].contains(&site));
    site(&Request { path, query, own }).unwrap_or_else(|error| {
        Answer::refused("503 Service Unavailable", &format!("the router does not answer: {error}"))
    })
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

/// A field of the head.
fn field<'a>(request: &'a str, wanted: &str) -> Option<&'a str> {
    request.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}

/// Whether the request names this host by an address, or as `localhost`.
fn is_own_name(request: &str) -> bool {
    let Some(host) = field(request, "host") else { return true };
    // An IPv6 address is in brackets, and has colons of its own.
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Whether files of a page load nothing from elsewhere, and need nothing that the policy forbids; if not, why.
///
/// # Errors
/// What a file has that it may not have.
pub fn are_of_the_house<'a>(files: impl IntoIterator<Item = &'a File>) -> Result<(), String> {
    for (path, _, text) in files {
        let forbidden = [
            "http://",
            "https://",
            "//cdn",
            "eval(",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
        ];
        // The name of SVG's elements is no address that is asked.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        let in_page = ["style=", "onclick"].into_iter().filter(|_| path.ends_with('/'));
        if let Some(found) = forbidden.into_iter().chain(in_page).find(|foreign| text.contains(foreign)) {
            return Err(format!("{path} has {found}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters() {
        let request = Request { path: "/", query: "a=1&from=h%31+x%&to=10.0.0.1%2", own: true };
        assert_eq!(request.parameter("from").unwrap(), "h1 x%");
        assert_eq!(request.parameter("to").unwrap(), "10.0.0.1%2");
        assert_eq!(request.parameter("b"), None);
    }

    #[test]
    fn who_asks() {
        let told = |fields: &str| {
            let request = format!("GET /x HTTP/1.1\r\n{fields}\r\n\r\n");
            let site = |request: &Request<'_>| Ok(Answer::ok(TEXT, request.own.to_string()));
            answer(&request, IpAddr::from([127, 0, 0, 1]), &site).body
        };
        assert_eq!(told("Host: localhost"), "true");
        assert_eq!(told("Sec-Fetch-Site: same-origin"), "true");
        assert_eq!(told("sec-fetch-site: cross-site"), "false");
    }
}
