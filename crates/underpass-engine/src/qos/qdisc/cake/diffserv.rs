//! Which tin a packet is in by its DSCP.

use crate::tables::CakeTins;

/// The tin of each DSCP.
pub(super) fn tins(diffserv: CakeTins) -> &'static [u8; 64] {
    match diffserv {
        CakeTins::Besteffort => &BESTEFFORT,
        CakeTins::Precedence => &PRECEDENCE,
        CakeTins::Diffserv3 => &DIFFSERV3,
        CakeTins::Diffserv4 => &DIFFSERV4,
        CakeTins::Diffserv8 => &DIFFSERV8,
    }
}

static BESTEFFORT: [u8; 64] = [0; 64];

static PRECEDENCE: [u8; 64] = {
    let mut tins = [0; 64];
    let mut dscp = 0;
    while dscp < 64 {
        tins[dscp] = dscp as u8 / 8;
        dscp += 1;
    }
    tins
};

static DIFFSERV3: [u8; 64] = by_dscp(0, &[(1, &[1, 8]), (2, &[4, 44, 46, 48, 56])]);

static DIFFSERV4: [u8; 64] = by_dscp(
    0,
    &[(1, &[1, 8]), (2, &[4, 16, 18, 20, 22, 24, 26, 28, 30, 34, 36, 38]), (3, &[32, 40, 44, 46, 48, 56])],
);

static DIFFSERV8: [u8; 64] = by_dscp(
    2,
    &[
        (0, &[1]),
        (1, &[2, 8, 10, 12, 14]),
        (3, &[24, 26, 28, 30, 34, 36, 38]),
        (4, &[4, 18, 20, 22]),
        (5, &[16]),
        (6, &[32, 40, 44, 46]),
        (7, &[48, 56]),
    ],
);

/// All are in a tin but for these.
const fn by_dscp(usual: u8, classes: &[(u8, &[u8])]) -> [u8; 64] {
    let mut tins = [usual; 64];
    let mut class = 0;
    while class < classes.len() {
        let (tin, dscps) = classes[class];
        let mut at = 0;
        while at < dscps.len() {
            tins[dscps[at] as usize] = tin;
            at += 1;
        }
        class += 1;
    }
    tins
}
