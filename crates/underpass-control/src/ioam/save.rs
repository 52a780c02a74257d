//! Namespaces and schemas as lines.

use super::{Namespace, Schema};
use crate::save::{Save, Words, quoted};

pub(crate) fn save(save: &mut Save<'_>) {
    let ioam = &save.router.ioam;
    for (id, Namespace { data, data_wide, schema: _ }) in &ioam.namespaces {
        let mut line = Words::new("ip ioam namespace add");
        line.add(id);
        line.some("data", (*data != u32::MAX).then_some(format_args!("{data:#x}")));
        line.some("wide", (*data_wide != u64::MAX).then_some(format_args!("{data_wide:#x}")));
        save.line(line);
    }
    let mut missing = Vec::new();
    for (id, Schema { data, namespace: _ }) in &ioam.schemas {
        // The tool takes a text, which is padded.
        let end = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        match data.get(..end).map(std::str::from_utf8) {
            Some(Ok(text))
                if !text.contains(['\0', '\n'])
                    && !text.is_empty()
                    && text.len().next_multiple_of(4) == data.len() =>
            {
                save.line(Words::new(&format!("ip ioam schema add {id} {}", quoted(text))));
            }
            _ => {
                missing.push(*id);
                save.left_out(format!("the IOAM schema {id}: its data are not a text"));
            }
        }
    }
    for (id, Namespace { schema, .. }) in &ioam.namespaces {
        if let Some(schema) = schema.filter(|schema| !missing.contains(schema)) {
            save.line(Words::new(&format!("ip ioam namespace set {id} schema {schema}")));
        }
    }
}
