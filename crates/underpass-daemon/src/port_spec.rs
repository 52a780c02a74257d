//! A port as the command line declares it: `NAME[,mac=XX:XX:XX:XX:XX:XX]`.

use std::str::FromStr;

/// A declared port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSpec {
    /// Interface name, 1 to 15 bytes (IFNAMSIZ less its NUL).
    pub name: String,
    /// Ethernet address, in the order of the wire; chosen by the router if `None`.
    pub mac: Option<[u8; 6]>,
}

impl FromStr for PortSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        if !valid_name(name) {
            return Err(format!(
                "'{name}' is no interface name: 1 to 15 bytes without blanks, '/' and ':', and not '.' or '..'"
            ));
        }
        let mut mac = None;
        for option in parts {
            match option.split_once('=') {
                Some(("mac", value)) => mac = Some(parse_mac(value)?),
                _ => {
                    return Err(format!("'{option}' is no option of a port; there is mac=XX:XX:XX:XX:XX:XX"));
                }
            }
        }
        Ok(Self { name: name.to_owned(), mac })
    }
}

/// dev_valid_name of Linux (net/core/dev.c).
fn valid_name(name: &str) -> bool {
    (1..16).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.bytes().any(|byte| byte == b'/' || byte == b':' || byte.is_ascii_whitespace())
}

fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = |why: &str| format!("'{text}' {why}");
    let mut mac = [0; 6];
    let mut bytes = text.split(':');
    for byte in &mut mac {
        let digits = bytes.next().filter(|digits| (1..=2).contains(&digits.len()));
        *byte = digits
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .ok_or_else(|| wrong("is no Ethernet address such as 02:00:00:00:00:01"))?;
    }
    if bytes.next().is_some() {
        return Err(wrong("is longer than an Ethernet address"));
    }
    // is_valid_ether_addr of Linux (include/linux/etherdevice.h).
    if mac[0] & 1 != 0 || mac == [0; 6] {
        return Err(wrong("is no address that a port can have: it is multicast or all zero"));
    }
    Ok(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses() {
        let plain = PortSpec { name: "v0".into(), mac: None };
        assert_eq!("v0".parse(), Ok(plain));
        let with_mac = PortSpec { name: "p-1".into(), mac: Some([2, 0, 0, 0, 0xab, 1]) };
        assert_eq!("p-1,mac=02:00:00:0:ab:01".parse(), Ok(with_mac));
    }

    #[test]
    fn what_is_refused() {
        for text in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "sixteen-bytes-ab",
            "p,mtu=9",
            "p,mac",
            "p,mac=1:2:3:4:5",
            "p,mac=1:2:3:4:5:6:7",
            "p,mac=01:0:0:0:0:1",
            "p,mac=0:0:0:0:0:0",
            "p,mac=2:0:0:0:0:+1",
            "p,mac=2:0:0:0:0:123",
        ] {
            assert!(text.parse::<PortSpec>().is_err(), "{text}");
        }
    }
}
