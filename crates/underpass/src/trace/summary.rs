//! `underpass trace --summary`: how many packets took which way, by the port that they came in by, by the table and the prefix that
//! their last look-up found, and by what became of them.

use std::{collections::BTreeMap, fmt::Write};

use serde::Serialize;
use underpass_daemon::live::trace::PacketPath;

/// What packets have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Way {
    /// `dropped: REASON`, `answered by ICMP`, `sent by PORT`, `delivered` or `under way`; several with commas between.
    became: String,
    port: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
    /// The address, where no route was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    /// The SRv6 behaviours that they went through.
    #[serde(skip_serializing_if = "Option::is_none")]
    behaviour: Option<String>,
}

/// All that was followed.
#[derive(Default)]
pub struct Summary(BTreeMap<Way, u64>);

#[derive(Serialize)]
struct Row<'a> {
    packets: u64,
    #[serde(flatten)]
    way: &'a Way,
}

impl Summary {
    /// Counts a packet.
    pub fn add(&mut self, packet_path: &PacketPath) {
        *self.0.entry(Way::of(packet_path)).or_default() += 1;
    }

    /// The most frequent first.
    fn rows(&self) -> Vec<Row<'_>> {
        let mut rows: Vec<_> = self.0.iter().map(|(way, packets)| Row { packets: *packets, way }).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.packets));
        rows
    }

    /// As a table for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:>9}  {:<12} {:<6} {:<6} {:<28} {:<12} {}\n",
            "packets", "in by", "rule", "table", "prefix", "behaviour", "became"
        );
        let word = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        for Row { packets, way } in self.rows() {
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "{packets:>9}  {:<12} {:<6} {:<6} {:<28} {:<12} {}",
                way.port,
                word(way.rule.map(|rule| rule.to_string())),
                word(way.table.map(|table| table.to_string())),
                word(way.prefix.clone()),
                word(way.behaviour.clone()),
                way.became
            );
        }
        text
    }

    /// As a JSON array on one line.
    ///
    /// # Errors
    /// None that is known.
    pub fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(&self.rows())? + "\n")
    }
}

impl Way {
    fn of(packet_path: &PacketPath) -> Self {
        // What is behind it is of the answer.
        let end = packet_path.steps.iter().position(|step| step.facts.reason.is_some());
        let steps = packet_path.steps.get(..end.unwrap_or(packet_path.steps.len())).unwrap_or_default();
        let answered = packet_path.steps.iter().any(|step| step.facts.icmp.is_some());
        let mut ends: Vec<String> =
            packet_path.dropped.iter().map(|reason| format!("dropped: {reason}")).collect();
        if answered {
            ends.push("answered by ICMP".to_owned());
        } else {
            ends.extend(packet_path.sent.iter().map(|port| format!("sent by {port}")));
        }
        ends.extend(packet_path.delivered.then(|| "delivered".to_owned()));
        ends.dedup();
        if ends.is_empty() {
            ends.push("under way".to_owned());
        }
        let looked_up = steps.iter().rfind(|step| step.facts.address.is_some());
        let behaviours: Vec<&str> = steps
            .iter()
            .filter(|step| step.step == "behaviour" || step.step == "headend")
            .filter_map(|step| step.facts.behaviour.as_deref())
            .collect();
        Self {
            became: ends.join(", "),
            port: packet_path.port.clone(),
            rule: steps.iter().rev().find_map(|step| step.facts.rule),
            table: looked_up.and_then(|step| step.facts.table),
            prefix: looked_up
                .and_then(|step| step.facts.prefix.clone().or_else(|| Some(step.facts.address?.to_string()))),
            behaviour: (!behaviours.is_empty()).then(|| behaviours.join(" ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use underpass_daemon::live::trace::Step;
    use underpass_daemon::packet_path::facts::Facts;

    use super::*;

    fn step(step: &str, facts: Facts) -> Step {
        Step { step: step.to_owned(), facts, ..Step::default() }
    }

    #[test]
    fn ways_are_told_apart() {
        let mut summary = Summary::default();
        let found = Facts {
            address: "10.1.2.3".parse().ok(),
            table: Some(10),
            prefix: Some("10.1.0.0/16".to_owned()),
            ..Facts::default()
        };
        let lost = PacketPath {
            port: "eth0".to_owned(),
            steps: vec![step("lookup", found)],
            dropped: vec!["blackhole".to_owned()],
            ..PacketPath::default()
        };
        let behaviour = Facts { behaviour: Some("End.DX4".to_owned()), ..Facts::default() };
        let sent = PacketPath {
            port: "eth1".to_owned(),
            steps: vec![step("behaviour", behaviour)],
            sent: vec!["eth0".to_owned()],
            ..PacketPath::default()
        };
        [&lost, &sent, &lost, &PacketPath::default()].into_iter().for_each(|path| summary.add(path));
        let table = summary.table();
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["2", "eth0", "-", "10", "10.1.0.0/16", "-", "dropped:", "blackhole"]);
        assert!(lines[2..].contains(&vec!["1", "eth1", "-", "-", "-", "End.DX4", "sent", "by", "eth0"]));
        assert!(table.contains("under way"));
        let json: serde_json::Value = serde_json::from_str(&summary.json().unwrap()).unwrap();
        assert_eq!((json[0]["packets"].as_u64(), json[0]["table"].as_u64()), (Some(2), Some(10)));
    }
}
