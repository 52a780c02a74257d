//! The dialogues in `tests/linux-reference/netlink.jsonl.xz`.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use underpass_control::Protocol;

/// One request of a tool and all that Linux answered.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The command line that the tool was run with.
    pub command: String,
    pub protocol: Protocol,
    pub request: Vec<u8>,
    pub answers: Vec<Vec<u8>>,
}

/// All exchanges, in their order.
pub fn exchanges() -> Vec<Exchange> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/linux-reference/netlink.jsonl.xz");
    let mut text = Vec::new();
    lzma_rs::xz_decompress(&mut BufReader::new(File::open(path).unwrap()), &mut text).unwrap();
    let mut sockets = HashMap::new();
    let mut last = HashMap::new();
    let mut exchanges: Vec<Exchange> = Vec::new();
    for line in String::from_utf8(text).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let socket = line["conn"].as_u64().unwrap();
        match line["dir"].as_str().unwrap() {
            "open" => {
                let protocol = if line["proto"] == 16 { Protocol::Generic } else { Protocol::Route };
                sockets.insert(socket, (protocol, line["cmd"].as_str().unwrap().to_owned()));
            }
            ">" => {
                let (protocol, command) = sockets[&socket].clone();
                last.insert(socket, exchanges.len());
                let request = hex(line["raw"].as_str().unwrap());
                exchanges.push(Exchange { command, protocol, request, answers: Vec::new() });
            }
            "<" => exchanges[last[&socket]].answers.push(hex(line["raw"].as_str().unwrap())),
            _ => {}
        }
    }
    exchanges
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
