//! The program at a device's hook of traffic control that carries packets in the kernel: what it can, as the engine's
//! workers would, from the engine's own tables. What it cannot goes where it would without the program: the kernel keeps
//! it, or a worker gets it, by a device that stands for the one by which it came.
//!
//! All is decided before the first byte of a packet is changed.

mod bridge;
mod decap;
mod device;
mod emit;
mod encap;
mod features;
mod hash;
mod inner_packet;
mod input;
mod laid_out;
mod leave;
mod mpls;
mod multipath;
mod police;
mod run;
mod srv6;
mod sum;
mod taps;
mod traced;
mod vlan;
mod walk;

pub mod arena;

pub use device::Fast;
pub(crate) use device::{Misses, leaving, not_in_driver};
pub(crate) use features::sends_for_drivers;
pub use run::Verdict;
pub use taps::Taps;
pub use traced::Matching;

use std::io;
use std::os::fd::OwnedFd;

pub use emit::Hook;
use emit::{Emit, REDIRECT, TCX_DROP, stack};
use traced::Token;
use underpass_engine::in_kernel::records::Places;

use crate::kernel_frames::KernelFrames;
use crate::xdp::assembler::{Do, Program, R0, R1, R2, R3, R6, R10, Size, When};
use crate::xdp::bpf::{self, Map, ProgramKind};
use crate::xdp::program;

/// `BPF_F_INGRESS`.
const INGRESS: i32 = 1;

/// What is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// The program for a hook.
    At(Hook),
    /// That for tcx, with what makes of a frame one as there: the kernel has the first tag in it, which is beside it there.
    Around,
}

impl Form {
    fn hook(self) -> Hook {
        match self {
            Self::At(hook) => hook,
            Self::Around => Hook::Tcx,
        }
    }
}

/// Loads the program. `arena` is the region that `places` are in; by `token` it knows what another program says of traced packets.
pub(crate) fn load(
    form: Form,
    arena: &Map,
    places: Places,
    kernel_frames: &KernelFrames,
    token: Token,
) -> io::Result<OwnedFd> {
    let load = |polices| load_with(form, polices, (arena, places), kernel_frames, token);
    // What is exchanged at once in an arena Linux 6.10 takes, and 6.9 does not.
    load(true).or_else(|_| load(false))
}

/// The same; `polices`: whether it knows filters.
fn load_with(
    form: Form,
    polices: bool,
    (arena, places): (&Map, Places),
    kernel_frames: &KernelFrames,
    token: Token,
) -> io::Result<OwnedFd> {
    let hook = form.hook();
    let mut p = Program::default();
    let main = p.label();
    if form == Form::Around {
        let around = p.label();
        p.function(around, "around", None);
        vlan::write_around(&mut p, main);
    }
    p.function(main, "carry", None);
    // That the program has an arena, the kernel sees by this.
    p.copy(R3, R1);
    p.map(R1, arena);
    p.copy(R1, R3);
    let mut emit = Emit::new(p, places, hook);
    emit.polices = polices;
    emit.input(kernel_frames.mark().cast_signed(), token);
    emit.write_causes();
    let miss = emit.miss;
    emit.p.here(miss);
    match hook {
        Hook::Tcx => emit.miss_at_tcx(kernel_frames)?,
        Hook::Xdp => {
            emit.p.set(R0, program::XDP_PASS);
            emit.p.exit();
        }
    }
    if polices {
        emit.write_policed();
    }
    if hook == Hook::Tcx {
        emit.write_tagged();
    }
    emit.function_find();
    if polices {
        emit.function_classify();
        emit.function_police();
        emit.function_act();
    }
    emit.function_walk();
    if hook == Hook::Tcx {
        emit.function_part();
    }
    emit.function_sum();
    emit.function_fold();
    emit.function_flow();
    let functions = emit.p.functions();
    let (kind, name) = match hook {
        Hook::Tcx => (ProgramKind::Classifier, "underpass_fast"),
        Hook::Xdp => (ProgramKind::Xdp, "underpass_xdp"),
    };
    bpf::load_functions(kind, name, &emit.p.finish(), &functions)
}

impl Emit {
    /// What no program carries: the kernel keeps it, or a worker gets it by the device that stands for this one.
    fn miss_at_tcx(&mut self, kernel_frames: &KernelFrames) -> io::Result<()> {
        let mark = kernel_frames.mark().cast_signed();
        let keeps = self.p.label();
        self.p = program::classify(
            std::mem::take(&mut self.p),
            (kernel_frames.maps().map_err(io::Error::other)?, mark),
            keeps,
        );
        let interfaces = self.places.interfaces.cast_signed();
        let p = &mut self.p;
        let nobody = p.label();
        p.load(Size::Word, R2, R6, self.context.ifindex);
        p.jump_if(
            R2,
            When::GreaterOrEqual,
            underpass_engine::in_kernel::records::MOST_INTERFACES.cast_signed(),
            nobody,
        );
        p.compute(R2, Do::ShiftLeft, 2);
        p.compute(R2, Do::Add, interfaces);
        p.point(R2, R2);
        p.load(Size::Word, R2, R2, 0);
        p.jump_if(R2, When::Equal, 0, nobody);
        p.store(Size::Double, R10, stack::INGRESS, R2);
        self.note_counters();
        self.count_miss();
        let p = &mut self.p;
        p.load(Size::Double, R2, R10, stack::INGRESS);
        p.point(R2, R2);
        p.load(Size::Word, R1, R2, 28);
        p.set(R2, INGRESS);
        p.call(REDIRECT);
        p.exit();
        p.here(nobody);
        p.set(R0, TCX_DROP);
        p.exit();
        p.here(keeps);
        p.set(R0, program::TCX_NEXT);
        p.exit();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast::arena::Arena;
    use underpass_engine::tables::Writer;

    #[test]
    fn the_program_loads() {
        let kernel_frames = KernelFrames::new();
        let arena = match (kernel_frames.maps(), Arena::new()) {
            (Ok(_), Ok(arena)) => arena,
            (_, error) => {
                eprintln!("SKIPPED the_program_loads: {:?}", error.err());
                return;
            }
        };
        let (writer, ..) = Writer::watched(1, 0, Some(arena.programs()));
        let began = std::time::Instant::now();
        let forms = [Form::At(Hook::Tcx), Form::At(Hook::Xdp), Form::Around];
        for (form, polices) in forms.into_iter().flat_map(|form| [(form, true), (form, false)]) {
            let memory = (arena.map(), writer.places().unwrap());
            let loaded = load_with(form, polices, memory, &kernel_frames, Token::new());
            eprintln!("{form:?}: {:?}", began.elapsed());
            if let Err(error) = loaded {
                let text = error.to_string();
                eprintln!("{}", &text[text.len().saturating_sub(6000)..]);
                panic!("refused");
            }
        }
    }
}
