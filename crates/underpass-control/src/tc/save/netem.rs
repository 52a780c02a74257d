//! `netem` in words.

use underpass_netlink::tc::netem::{
    CORRUPT_CORRELATION, DELAY_CORRELATION, DUPLICATE_CORRELATION, LOSS_CORRELATION, Loss, Netem, NetemRate,
    REORDER_CORRELATION,
};

use super::rate_word;
use crate::save::{Save, Words};

/// A probability of 2³² - 1, as exact as `tc` reads it.
fn percent(probability: u32) -> String {
    let text = format!("{:.9}", f64::from(probability) * 100.0 / f64::from(u32::MAX));
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A time in microseconds, the least unit that `tc` reads here.
fn time(nanos: i64) -> String {
    format!("{}.{:03}us", nanos / 1000, nanos % 1000)
}

/// The words of its parameters.
pub(super) fn words(save: &mut Save<'_>, line: &mut Words, settings: &Netem, name: &str) {
    let Netem {
        latency,
        jitter,
        distribution,
        limit,
        loss,
        loss_model,
        ecn,
        duplicate,
        corrupt,
        reorder,
        gap,
        rate,
        correlations,
        seed,
        seeded,
    } = settings;
    let correlation = |place: usize| correlations.get(place).copied().unwrap_or(0);
    let with = |probability: u32, place: usize| match correlation(place) {
        0 => percent(probability),
        correlation => format!("{} {}", percent(probability), percent(correlation)),
    };
    line.pair("limit", limit);
    if *latency != 0 || *jitter != 0 {
        line.pair("delay", time(*latency));
        if *jitter != 0 {
            line.add(time((*jitter).into()));
            let correlation = correlation(DELAY_CORRELATION);
            line.when(correlation != 0, &percent(correlation));
        }
    }
    if distribution.is_some() {
        save.left_out(format!("the distribution of the delays of the netem {name}"));
    }
    match *loss_model {
        Loss::Random if *loss != 0 => {
            line.pair("loss random", with(*loss, LOSS_CORRELATION));
        }
        Loss::Random => {}
        Loss::States { p13, p31, p32, p14, p23 } => {
            line.pair("loss state", [p13, p31, p32, p23, p14].map(percent).join(" "));
        }
        Loss::GilbertElliot { p, r, h, k1 } => {
            line.pair("loss gemodel", [p, r, u32::MAX - h, k1].map(percent).join(" "));
        }
    }
    let loses = *loss != 0 || *loss_model != Loss::Random;
    line.when(*ecn && loses, "ecn");
    line.some("duplicate", (*duplicate != 0).then(|| with(*duplicate, DUPLICATE_CORRELATION)));
    line.some("corrupt", (*corrupt != 0).then(|| with(*corrupt, CORRUPT_CORRELATION)));
    if *gap != 0 && *latency == 0 && *jitter == 0 {
        save.left_out(format!("the order of the packets of the netem {name}: nothing delays them"));
    } else if *gap != 0 {
        line.pair("reorder", with(*reorder, REORDER_CORRELATION)).pair("gap", gap);
    }
    let NetemRate { bytes, packet_overhead, cell_size, cell_overhead } = rate;
    if *bytes != 0 {
        line.pair("rate", rate_word(*bytes)).add(packet_overhead).add(cell_size).add(cell_overhead);
    }
    line.some("seed", seeded.then_some(seed));
}
