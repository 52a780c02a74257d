//! The program that carries packets in the kernel: whether there is one, and why not.

use std::io;

use anyhow::{Context, bail};
use underpass_control::Router;
use underpass_engine::{bpf::classic::Filter, in_kernel::records::Places, tables::Writer};
use underpass_port::{
    fast::{Fast, Matching, arena::Arena},
    kernel_frames::KernelFrames,
    live::{Device, Hooks},
};

use super::{
    FastPath,
    attach::Driver,
    device::{self, Sysctls},
};

/// The longest packet that a device takes which stands for another: what came by that is not looked at again.
const STAND_IN_MTU: u32 = 65521;

/// The program, for all devices, or why there is none.
pub struct FastPrograms {
    fast: Result<Fast, String>,
    hooks: Hooks,
    /// While only some packets are traced.
    matching: Option<Matching>,
    /// How many devices have been made by which workers get what no program carries.
    stand_ins: u32,
}

impl Default for FastPrograms {
    fn default() -> Self {
        Self::without("it was not asked for".to_owned())
    }
}

impl FastPrograms {
    fn without(why: String) -> Self {
        Self { fast: Err(why), hooks: Hooks::Tcx, matching: None, stand_ins: 0 }
    }

    /// Has workers get only those packets of these devices, while packets are traced, that a filter matches and that come in
    /// by an interface.
    ///
    /// # Errors
    /// Why they are to get all.
    pub fn trace(
        &mut self,
        filter: Option<&Filter>,
        ifindex: Option<u32>,
        devices: impl Iterator<Item = u32>,
    ) -> Result<(), String> {
        self.matching = None;
        if let Ok(fast) = &self.fast
            && (filter.is_some() || ifindex.is_some())
        {
            let made = fast.trace(filter, ifindex, devices);
            let why = |error: io::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
            self.matching = Some(made.map_err(why)?);
        }
        Ok(())
    }

    /// Has workers get all packets, when packets are traced.
    pub fn trace_no_more(&mut self) {
        self.matching = None;
    }

    /// Why no program carries packets, if none does.
    pub fn why_not(&self) -> Option<&str> {
        self.fast.as_ref().err().map(String::as_str)
    }

    /// Attaches a device with the program, if there is one and it can be.
    pub fn attach(
        &mut self,
        (index, name): (u32, &str),
        driver: Driver,
        router: &mut Router,
        (kernel_frames, sysctls): (&KernelFrames, &Sysctls),
    ) -> Option<Device> {
        let (Ok(fast), Driver::Auto | Driver::Packet) = (&self.fast, driver) else { return None };
        self.stand_ins = self.stand_ins.wrapping_add(1);
        let stand_in = format!("upm{}", self.stand_ins);
        let attached = Device::attach_fast(name, kernel_frames, (fast, self.hooks), &stand_in)
            .map_err(anyhow::Error::from);
        let attached = attached.and_then(|device| {
            sysctls.return_path(&stand_in);
            device::set_mtu(&stand_in, STAND_IN_MTU)?;
            device::set_up(&stand_in)?;
            // Before the program asks for it.
            router.set_programs(index, device.programs().map(|(_, programs)| programs));
            if !router.programs_know(index) {
                bail!("{name}: interface {index} is beyond those that the program knows");
            }
            Ok(device)
        });
        if let (Ok(device), Hooks::Xdp) = (&attached, self.hooks)
            && !device.has_program_in_driver()
        {
            tracing::warn!("{name}: --fast-path xdp: {}", device.why());
        }
        if let Err(error) = &attached {
            router.set_programs(index, None);
            if !device::is_gone(index, name) {
                tracing::warn!("{error:#}: the kernel does not carry packets by itself there");
            }
        }
        attached.ok()
    }
}

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
    kernel_frames: &KernelFrames,
) -> anyhow::Result<FastPrograms> {
    let hooks = match wanted {
        FastPath::Auto => Hooks::Auto,
        FastPath::Off | FastPath::Tcx => Hooks::Tcx,
        FastPath::Xdp => Hooks::Xdp,
    };
    let arena = match arena {
        Ok(arena) => arena,
        Err(why) => return Ok(FastPrograms::without(why)),
    };
    let fast = match (places, kernel_frames.without_bpf()) {
        (_, Some(why)) => Err(anyhow::anyhow!("{why}")),
        (None, _) => Err(anyhow::anyhow!("the arena has no room for the tables")),
        (Some(places), None) => Fast::load(arena, places, kernel_frames).context("the program"),
    };
    Ok(FastPrograms { fast: decide(wanted, fast)?, hooks, matching: None, stand_ins: 0 })
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
        Fast::load(arena, places, &KernelFrames::new()).context("the program")
    };
    let short = |error: anyhow::Error| format!("{error:#}").lines().next().unwrap_or_default().to_owned();
    tried().map(drop).map_err(short)
}

fn decide<T>(wanted: FastPath, made: anyhow::Result<T>) -> anyhow::Result<Result<T, String>> {
    match (made, wanted) {
        (Ok(made), _) => Ok(Ok(made)),
        (Err(error), FastPath::Tcx) => bail!("--fast-path tcx: {error:#}"),
        (Err(error), FastPath::Xdp) => bail!("--fast-path xdp: {error:#}"),
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
