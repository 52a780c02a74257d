//! `--rx`: which packets of which capture go into which port.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail};
use underpass_daemon::port_spec::PortSpec;
use underpass_port::pcap;

/// `[PORT=]FILE[,interface=NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// `None`: each interface of the file has a port of its name.
    port: Option<PortSpec>,
    file: PathBuf,
    /// The only interface whose packets are wanted.
    interface: Option<String>,
}

/// A capture and the port that it comes in by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feed {
    /// The port.
    pub port: PortSpec,
    /// The capture.
    pub file: PathBuf,
    /// The name or number of the interface of the capture whose packets come in; all if `None`.
    pub interface: Option<String>,
}

impl FromStr for Input {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, interface) = match text.rsplit_once(",interface=") {
            Some((_, "")) => return Err("interface= names no interface".to_owned()),
            Some((rest, interface)) => (rest, Some(interface.to_owned())),
            None => (text, None),
        };
        let (port, file) = match rest.split_once('=') {
            Some((port, file)) => (Some(port.parse()?), file),
            None => (None, rest),
        };
        if file.is_empty() {
            return Err("FILE or PORT=FILE is needed, such as wan=in.pcap".to_owned());
        }
        Ok(Self { port, file: file.into(), interface })
    }
}

/// What `inputs` mean, once it is known which interfaces the captures have.
///
/// # Errors
/// A capture cannot be read, has not the interface, or interfaces that no port can be named after.
pub fn feeds(inputs: &[Input]) -> anyhow::Result<Vec<Feed>> {
    let mut feeds = Vec::new();
    for Input { port, file, interface } in inputs {
        if let Some(interface) = interface {
            pcap::check_interface(file, interface)?;
        }
        match (port, interface) {
            (Some(port), _) => {
                feeds.push(Feed { port: port.clone(), file: file.clone(), interface: interface.clone() });
            }
            (None, Some(interface)) => feeds.push(named(file, interface)?),
            (None, None) => {
                for interface in pcap::interfaces(file)? {
                    let Some(name) = &interface.name else {
                        bail!(
                            "{file}: interface {interface} has no name that would name a port: \
                             --rx PORT={file}, or --rx PORT={file},interface={interface}",
                            file = file.display()
                        );
                    };
                    feeds.push(named(file, name)?);
                }
            }
        }
    }
    Ok(feeds)
}

/// What was captured at an interface, for the port of its name.
fn named(file: &std::path::Path, interface: &str) -> anyhow::Result<Feed> {
    let port = interface.parse::<PortSpec>().map_err(anyhow::Error::msg).with_context(|| {
        format!(
            "{0}: no port can have the name of an interface; --rx PORT={0},interface=NAME",
            file.display()
        )
    })?;
    Ok(Feed { port, file: file.to_owned(), interface: Some(interface.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_where() {
        let input = |port: Option<&str>, file: &str, interface: Option<&str>| {
            let port = port.map(|name| PortSpec { name: name.to_owned(), mac: None });
            Ok(Input { port, file: file.into(), interface: interface.map(str::to_owned) })
        };
        assert_eq!("wan=in.pcap".parse(), input(Some("wan"), "in.pcap", None));
        assert_eq!("both.pcapng".parse(), input(None, "both.pcapng", None));
        assert_eq!("w=a=b,c.pcap,interface=2".parse(), input(Some("w"), "a=b,c.pcap", Some("2")));
        for wrong in ["", "wan=", "wan=a,interface=", ",interface=2", "a/b=c", "=c"] {
            assert!(wrong.parse::<Input>().is_err(), "{wrong}");
        }
    }
}
