//! `underpass stats drops`: why packets were dropped, by which port they had come, and the last of each reason.

use std::{
    fmt::Write as _,
    fs::File,
    io::BufWriter,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use underpass_daemon::live::{drops::Dropped, hex};
use underpass_port::pcapng;

use super::rates::{Rates, Unit};

/// In words, for people.
#[expect(clippy::ptr_arg, reason = "a table is made of what was read, whole")]
pub fn table(drops: &Vec<Dropped>, unit: Unit) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    words(drops, unit, now)
}

fn words(drops: &[Dropped], unit: Unit, now: u64) -> String {
    let mut text = unit.title().to_owned();
    if drops.is_empty() {
        text += "nothing was dropped\n";
    }
    let s = unit.suffix();
    for drop in drops {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{}: {} packets{s}. {}", drop.reason, drop.packets, drop.meaning);
        let mut by: Vec<String> = drop
            .ports
            .iter()
            .map(|(port, packets)| match port.as_str() {
                "-" => format!("{packets} that had waited"),
                port => format!("{port} {packets}"),
            })
            .collect();
        if drop.in_kernel > 0 {
            by.push(format!("{} in the kernel", drop.in_kernel));
        }
        if !by.is_empty() {
            let _ = writeln!(text, "    in by {}", by.join(", "));
        }
        if let Some(last) = &drop.last {
            let port = last.port.as_deref().map_or("had waited".to_owned(), |port| format!("in by {port}"));
            let ago = now.saturating_sub(last.time) as f64 / 1e9;
            let _ = writeln!(text, "    last {ago:.1} s ago, {port}, {} bytes: {}", last.length, last.text);
        }
    }
    text
}

/// Writes the last packet of each reason.
///
/// # Errors
/// There is none; those of writing.
pub fn write(drops: &[Dropped], path: &Path) -> anyhow::Result<()> {
    let examples: Vec<_> = drops.iter().filter_map(|drop| Some((drop, drop.last.as_ref()?))).collect();
    if examples.is_empty() {
        bail!("no packet was dropped of which anything is kept, so {} is not written", path.display());
    }
    let file = File::create(path).with_context(|| path.display().to_string())?;
    let program = concat!("underpass ", env!("CARGO_PKG_VERSION"));
    let mut capture = pcapng::Writer::new(BufWriter::new(file), program)?;
    for (drop, last) in &examples {
        let bytes = hex::bytes(&last.hex).context("the router's answer")?;
        capture.write(&pcapng::Frame {
            port: last.port.as_deref().unwrap_or("waited"),
            left: false,
            time: last.time,
            bytes: &bytes,
            len: last.length,
            comment: &format!("dropped: {}. {}", drop.reason, drop.meaning),
        })?;
    }
    capture.flush()?;
    eprintln!("{} packets written to {}", examples.len(), path.display());
    Ok(())
}

impl Rates for Vec<Dropped> {
    fn rates(&self, last: &Self, seconds: f64) -> Self {
        let none = Dropped::default();
        let rates = self.iter().map(|drop| {
            let before = last.iter().find(|before| before.reason == drop.reason).unwrap_or(&none);
            Dropped {
                packets: super::rates::rate(drop.packets, before.packets, seconds),
                in_kernel: super::rates::rate(drop.in_kernel, before.in_kernel, seconds),
                ports: drop.ports.rates(&before.ports, seconds),
                ..drop.clone()
            }
        });
        rates.filter(|drop| drop.packets > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use underpass_daemon::live::drops::Example;

    use super::*;

    fn dropped(packets: u64, wan: u64) -> Dropped {
        Dropped {
            reason: "no-route".to_owned(),
            meaning: "No route.".to_owned(),
            packets,
            ports: [("wan".to_owned(), wan), ("-".to_owned(), 1)].into(),
            in_kernel: 2,
            last: Some(Example {
                time: 1_000_000_000,
                port: Some("wan".to_owned()),
                length: 98,
                hex: "0102".to_owned(),
                text: "Ethernet".to_owned(),
                ..Example::default()
            }),
        }
    }

    #[test]
    fn in_words() {
        let told = words(&[dropped(9, 6)], Unit::Count, 3_500_000_000);
        let expected = "no-route: 9 packets. No route.\n    in by 1 that had waited, wan 6, 2 in the kernel\n    \
                        last 2.5 s ago, in by wan, 98 bytes: Ethernet\n";
        assert_eq!(told, expected);
        assert_eq!(words(&[], Unit::Count, 0), "nothing was dropped\n");
    }

    #[test]
    fn by_second() {
        let rates = vec![dropped(19, 14)].rates(&vec![dropped(9, 6)], 2.0);
        assert_eq!((rates[0].packets, rates[0].ports.get("wan"), rates[0].in_kernel), (5, Some(&4), 0));
        assert!(vec![dropped(9, 6)].rates(&vec![dropped(9, 6)], 1.0).is_empty());
    }

    #[test]
    fn as_a_capture() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("drops.pcapng");
        write(&[dropped(9, 6)], &path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.windows(22).any(|window| window == b"dropped: no-route. No "));
        let none = Dropped { last: None, ..dropped(1, 1) };
        assert!(write(&[none], &path).unwrap_err().to_string().starts_with("no packet was dropped"));
    }
}
