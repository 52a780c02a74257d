//! Variables as lines.

use super::{Instance, Sysctls};
use crate::save::{Save, Words};

/// Those that belong to no link.
pub(crate) fn save_common(save: &mut Save<'_>) {
    write(save, |instance| !matches!(instance, Instance::Link(_)));
}

/// Those of links.
pub(crate) fn save_of_links(save: &mut Save<'_>) {
    write(save, |instance| matches!(instance, Instance::Link(_)));
}

fn write(save: &mut Save<'_>, wanted: fn(Instance) -> bool) {
    let Sysctls(values) = &save.router.sysctls;
    for (&(path, instance), value) in values.iter().filter(|((_, instance), _)| wanted(*instance)) {
        let name = match instance {
            Instance::One => String::new(),
            Instance::All => "all".to_owned(),
            Instance::Default => "default".to_owned(),
            Instance::Link(link) => match save.router.links.get(link) {
                Some(link) => link.name.clone(),
                None => continue,
            },
        };
        // With slashes, a name may have dots.
        let path = path.replace('*', &name);
        save.line(Words::new(&format!("sysctl -qw {}", crate::save::quoted(&format!("net/{path}={value}")))));
    }
}
