//! A router with virtual ports and nothing of the kernel's: for `run --offline`, `replay`, `bench`, tests.

use std::{
    ffi::OsStr,
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use underpass_control::{RequestError, Router, read_sysctl, write_sysctl};
use underpass_engine::{
    buffer::PortId,
    tables::{Reader, Tables, Writer},
};

use crate::{
    fpm::Fpm,
    launch::{self, LaunchError},
    port_spec::PortSpec,
    script::Target,
    serve::{self, ListenError, Server, Waker},
    startup::Variables,
};

/// Why there is no such router.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A port cannot be made.
    #[error("port {name}: {}", describe(error))]
    Port {
        /// Its name.
        name: String,
        /// The router's answer.
        error: RequestError,
    },
    /// The server's socket cannot be made.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// No thread, or no directory for the socket.
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn describe(error: &RequestError) -> String {
    match error.errno {
        libc::EEXIST => "a link of that name is there already".to_owned(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    }
}

/// A router whose ports are `ports`, in this order: the first is [`PortId`] 0. A port that names no MAC
/// address gets `02:75:70:00:00:01` for the first, `…:02` for the second and so on.
///
/// # Errors
/// [`OfflineError::Port`], for two ports of one name.
pub fn router(
    ports: &[PortSpec],
    workers: usize,
) -> Result<(Router, Arc<Tables>, Vec<Reader>), OfflineError> {
    let (writer, tables, readers) = Writer::new(workers);
    Ok((router_over(writer, ports)?, tables, readers))
}

/// The same over empty tables, to which it writes.
fn router_over(writer: Writer, ports: &[PortSpec]) -> Result<Router, OfflineError> {
    let mut router = Router::new(writer);
    for (number, port) in (0u16..).zip(ports) {
        let [high, low] = number.wrapping_add(1).to_be_bytes();
        let mac = port.mac.unwrap_or([0x02, 0x75, 0x70, 0, high, low]);
        router
            .add_port(&port.name, mac, PortId(number))
            .map_err(|error| OfflineError::Port { name: port.name.clone(), error })?;
    }
    Ok(router)
}

/// Serves until `stop` is set and the server's [`Waker`] has been used, and FRR too if there is an `fpm`. The
/// router is locked while requests are answered, and free while there are none. `turned` looks at it after each time, and says
/// whether everybody is to be served.
///
/// # Errors
/// As [`Server::wait_or`].
pub fn serve(
    server: &mut Server,
    mut fpm: Option<&mut Fpm>,
    router: &Mutex<Router>,
    stop: &AtomicBool,
    mut turned: impl FnMut(&Router, Option<&Fpm>) -> bool,
) -> io::Result<()> {
    while !stop.load(Relaxed) {
        let ready = match &fpm {
            Some(fpm) => server.wait_or(fpm.as_fd())?,
            None => server.wait()?,
        };
        let mut router = lock(router);
        if let Some(fpm) = &mut fpm {
            fpm.turn(&mut router);
        }
        // It also tells of what FRR has changed.
        server.turn(&mut *router, &ready);
        if turned(&router, fpm.as_deref()) {
            server.serve_all();
        }
    }
    Ok(())
}

fn lock(router: &Mutex<Router>) -> MutexGuard<'_, Router> {
    router.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A router that is served by a thread of this process, on a socket of its own. Dropping it ends both.
pub struct Offline {
    router: Arc<Mutex<Router>>,
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    // Removed with what is in it when all else has ended.
    _directory: tempfile::TempDir,
}

impl Offline {
    /// Starts one, with what its packet path needs for so many workers. See [`router`] for the ports.
    ///
    /// # Errors
    /// [`OfflineError`].
    pub fn new(ports: &[PortSpec], workers: usize) -> Result<(Self, Arc<Tables>, Vec<Reader>), OfflineError> {
        let (writer, tables, readers) = Writer::new(workers);
        Ok((Self::over(writer, ports)?, tables, readers))
    }

    /// Starts one that writes to these tables, which are empty.
    ///
    /// # Errors
    /// [`OfflineError`].
    pub fn over(writer: Writer, ports: &[PortSpec]) -> Result<Self, OfflineError> {
        let router = router_over(writer, ports)?;
        let directory = tempfile::Builder::new().prefix("underpass-").tempdir()?;
        let socket = directory.path().join("netlink.sock");
        let mut server = Server::listen(&socket, &serve::Options::default())?;
        let (router, stop, waker) = (Arc::new(Mutex::new(router)), Arc::default(), server.waker());
        let (served, stopped) = (Arc::clone(&router), Arc::clone(&stop));
        let thread = thread::Builder::new().name("control".to_owned()).spawn(move || {
            if let Err(error) = serve(&mut server, None, &served, &stopped, |_, _| true) {
                tracing::error!("the netlink server has ended: {error}");
            }
        })?;
        Ok(Self { router, socket, stop, waker, thread: Some(thread), _directory: directory })
    }

    /// The router. While the guard is held no request is answered.
    pub fn router(&self) -> MutexGuard<'_, Router> {
        lock(&self.router)
    }

    /// Path of its socket, for `underpass exec --socket` or another process.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A command whose netlink sockets lead to this router.
    ///
    /// # Errors
    /// [`LaunchError::NoLibrary`] and [`LaunchError::UnusablePath`].
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command, LaunchError> {
        launch::command(&self.socket, program)
    }

    /// Runs a program such as `ip` with these arguments against this router, without input, and waits for it.
    ///
    /// # Errors
    /// As [`Offline::command`], and if the program cannot be started; a program that fails is no error
    /// here.
    pub fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> io::Result<Output> {
        launch::output(&self.socket, words)
    }

    /// As [`Offline::run`], with this input, and without a terminal where the program could ask instead: `ip sr
    /// hmac set` reads its secret there.
    ///
    /// # Errors
    /// As [`Offline::run`]; setsid(1) is needed.
    pub fn run_with<S: AsRef<OsStr>>(&self, words: &[S], input: &str) -> io::Result<Output> {
        launch::output_of(&self.socket, words, input)
    }

    /// As [`Offline::run`], with the words of `line` between blanks: nothing is quoted.
    ///
    /// # Errors
    /// As [`Offline::run`].
    pub fn run_line(&self, line: &str) -> io::Result<Output> {
        self.run(&line.split_whitespace().collect::<Vec<_>>())
    }
}

impl Variables for Arc<Mutex<Router>> {
    fn read(&self, path: &str) -> Result<String, RequestError> {
        read_sysctl(&lock(self), path)
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<(), RequestError> {
        write_sysctl(&mut lock(self), path, value)
    }
}

impl Target for Offline {
    fn socket(&self) -> &Path {
        &self.socket
    }

    fn read_sysctl(&self, path: &str) -> Result<String, RequestError> {
        read_sysctl(&self.router(), path)
    }

    fn write_sysctl(&self, path: &str, value: &[u8]) -> Result<(), RequestError> {
        write_sysctl(&mut self.router(), path, value)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
