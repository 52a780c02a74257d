//! Extended matches in words.

use underpass_netlink::tc::basic::{Kind, Layer, Match, Meta, Operand, Operator, Relation, Tree};

/// The matches as `tc` reads them; empty if every packet passes. Or why there are no such words.
pub(in crate::tc::filter) fn tree_words(tree: &Tree) -> Result<String, String> {
    match tree.matches.is_empty() {
        true => Ok(String::new()),
        false => list_words(tree, 0, 0),
    }
}

/// Containers in containers that are followed.
const DEPTH: usize = 32;

/// The matches from a place on, to the end of their list.
fn list_words(tree: &Tree, from: usize, depth: usize) -> Result<String, String> {
    if depth > DEPTH {
        return Err("it has too many brackets".to_owned());
    }
    let mut words = String::new();
    for one in tree.matches.get(from..).unwrap_or_default() {
        if one.invert {
            words.push_str("not ");
        }
        match &one.kind {
            Kind::Container(place) => {
                words.push_str(&format!("({})", list_words(tree, *place as usize, depth + 1)?));
            }
            _ => words.push_str(&match_words(one)?),
        }
        match one.relation {
            Relation::End => return Ok(words),
            Relation::And => words.push_str(" and "),
            Relation::Or => words.push_str(" or "),
        }
    }
    Err("its list has no end".to_owned())
}

fn operator(operator: Operator) -> Result<&'static str, String> {
    match operator {
        Operator::Equal => Ok("eq"),
        Operator::Greater => Ok("gt"),
        Operator::Less => Ok("lt"),
        Operator::Other => Err("an operator has no name".to_owned()),
    }
}

fn layer(layer: Layer) -> Result<&'static str, String> {
    match layer {
        Layer::Link => Ok("link"),
        Layer::Network => Ok("network"),
        Layer::Transport => Ok("transport"),
        Layer::Other(number) => Err(format!("the layer {number} has no name")),
    }
}

fn match_words(one: &Match) -> Result<String, String> {
    match &one.kind {
        Kind::Container(_) => Err("a bracket is no match".to_owned()),
        Kind::Cmp { value, mask, offset, width, transform, layer: from, operator: how } => {
            let width = match width {
                1 => "u8",
                2 => "u16",
                4 => "u32",
                other => return Err(format!("cmp compares {other} bytes")),
            };
            let mask = if *mask == 0 { String::new() } else { format!(" mask {mask:#x}") };
            let trans = if *transform { " trans" } else { "" };
            let (layer, how) = (layer(*from)?, operator(*how)?);
            Ok(format!("cmp({width} at {offset} layer {layer}{mask}{trans} {how} {value})"))
        }
        Kind::Nbyte { offset, layer: from, pattern } => {
            let letter = |byte: &u8| match byte {
                b if b.is_ascii_alphanumeric() => char::from(*b).to_string(),
                b => format!("\\{b:03o}"),
            };
            let text: String = pattern.iter().map(letter).collect();
            Ok(format!("nbyte(\"{text}\" at {offset} layer {})", layer(*from)?))
        }
        Kind::U32(key) => {
            let [value, mask] = [key.value, key.mask].map(u32::from_be_bytes);
            let next = match key.offset_mask {
                0 => "",
                -1 => "nexthdr+",
                _ => return Err("the offset of u32 has a mask".to_owned()),
            };
            Ok(format!("u32(u32 {value:#x} {mask:#x} at {next}{})", key.offset))
        }
        Kind::Meta { left, right, operator: how } => {
            Ok(format!("meta({} {} {})", operand(left), operator(*how)?, operand(right)))
        }
    }
}

fn operand(operand: &Operand) -> String {
    let Operand { meta, shift, mask } = operand;
    let name = match meta {
        Meta::Value(number) => number.to_string(),
        Meta::Device => "dev".to_owned(),
        Meta::Priority => "priority".to_owned(),
        Meta::Protocol => "protocol".to_owned(),
        Meta::PacketLength => "pkt_len".to_owned(),
        Meta::MacLength => "mac_len".to_owned(),
        Meta::Mark => "nf_mark".to_owned(),
        Meta::VlanTag => "vlan".to_owned(),
    };
    let shift = if *shift == 0 { String::new() } else { format!(" shift {shift}") };
    let mask = if *mask == 0 { String::new() } else { format!(" mask {mask:#x}") };
    format!("{name}{shift}{mask}")
}
