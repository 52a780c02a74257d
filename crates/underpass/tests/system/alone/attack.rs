//! The attacks of `make soak`, for a moment.

use std::{path::Path, process::Command};

use crate::net::{program, skip, turn_alone};

/// Who takes all descriptors, does not read, sends halves and garbage or stops a worker: nothing goes back meanwhile, and
/// afterwards the router is as it was.
#[test]
fn attacks_leave_nothing() {
    let Some(_turn) = turn_alone("attacks_leave_nothing") else { return };
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("attacks_leave_nothing", "there is no python3");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/attack/attack.py");
    let output = Command::new("python3")
        .arg("-B")
        .arg(script)
        .args(["--seconds", "8"])
        .arg(program())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for done in ["lazy clients cut off", "descriptors handed over", "workers stopped", "slow requests"] {
        assert!(said.contains(done), "no {done} in:\n{said}");
    }
}
