//! The pages of the routers, each at a port of the namespace that the lab was started in.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::Context;
use underpass_daemon::testbed::Namespace;

/// Where a router serves its page in its own namespace.
pub const METRICS: &str = "127.0.0.1:9117";

/// Leads connections at a port of 127.0.0.1 to the page of the router in `namespace`, as long as this process lives.
///
/// # Errors
/// Those of bind(2), with the port.
pub fn lead(port: u16, namespace: &Namespace) -> anyhow::Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = TcpListener::bind(address).with_context(|| format!("--web: {address}"))?;
    let namespace = namespace.clone();
    thread::spawn(move || {
        loop {
            match listener.accept() {
                Ok((near, _)) => {
                    let namespace = namespace.clone();
                    // A connection that breaks is the browser's to repeat.
                    thread::spawn(move || relay(near, &namespace));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // No more descriptors, perhaps: not asked again at once.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    });
    Ok(())
}

/// Both directions, until both have ended.
fn relay(mut near: TcpStream, namespace: &Namespace) -> io::Result<()> {
    let mut far = namespace.enter(|| TcpStream::connect(METRICS))??;
    let (mut asked, mut answers) = (near.try_clone()?, far.try_clone()?);
    let asking = thread::spawn(move || {
        let copied = io::copy(&mut asked, &mut answers);
        // What was asked ends here, or the other direction would wait for an end that does not come.
        let _ = answers.shutdown(Shutdown::Write);
        copied
    });
    io::copy(&mut far, &mut near)?;
    near.shutdown(Shutdown::Both)?;
    let _ = asking.join();
    Ok(())
}
