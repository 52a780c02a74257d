//! The program that carries packets in the kernel: whether there is one, and why not.

use anyhow::{Context, bail};
use underpass_engine::{in_kernel::records::Places, tables::Writer};
use underpass_port::{
    fast::{Fast, arena::Arena},
    keep::Keep,
};

use super::FastPath;

/// The memory that tables and program share, or why there is none.
///
/// # Errors
/// There is none, and the program was asked for.
pub fn arena(wanted: FastPath) -> anyhow::Result<Result<Arena, String>> {
    if wanted == FastPath::Off {
        return Ok(Err("--fast-path off".to_owned()));
    }
    let arena = Arena::new().context("BPF arena, which needs Linux 6.9");
    decide(wanted, arena)
}

/// The program itself, or why there is none.
///
/// # Errors
/// As [`arena`].
pub fn load(
    wanted: FastPath,
    arena: Result<Arena, String>,
    places: Option<Places>,
    keep: &Keep,
) -> anyhow::Result<Result<Fast, String>> {
    let arena = match arena {
        Ok(arena) => arena,
        Err(why) => return Ok(Err(why)),
    };
    let fast = match (places, keep.without_bpf()) {
        (_, Some(why)) => Err(anyhow::anyhow!("{why}")),
        (None, _) => Err(anyhow::anyhow!("the arena has no room for the tables")),
        (Some(places), None) => Fast::load(arena, places, keep).context("the program"),
    };
    decide(wanted, fast)
}

/// Whether this kernel takes the program that carries packets.
///
/// # Errors
/// Why it does not.
pub fn try_fast_path() -> Result<(), String> {
    let tried = || {
        let arena = Arena::new().context("BPF arena, which needs Linux 6.9")?;
        let (writer, ..) = Writer::watched(1, 0, Some(arena.programs()));
        let places = writer.places().context("the arena has no room for the tables")?;
        Fast::load(arena, places, &Keep::new()).context("the program")
    };
    let short = |error: anyhow::Error| format!("{error:#}").lines().next().unwrap_or_default().to_owned();
    tried().map(drop).map_err(short)
}

fn decide<T>(wanted: FastPath, made: anyhow::Result<T>) -> anyhow::Result<Result<T, String>> {
    match (made, wanted) {
        (Ok(made), _) => Ok(Ok(made)),
        (Err(error), FastPath::Tcx) => bail!("--fast-path tcx: {error:#}"),
        (Err(error), FastPath::Auto | FastPath::Off) => {
            let why = format!("{error:#}");
            // What a verifier says is long.
            let first = why.lines().next().unwrap_or_default();
            tracing::warn!("the kernel carries no packets by itself: {first}");
            tracing::debug!("{why}");
            Ok(Err(first.to_owned()))
        }
    }
}
