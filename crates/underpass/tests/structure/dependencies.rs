//! What `deny.toml` says of licences, sources and versions holds for all that is built. cargo-deny, which also knows
//! advisories, takes minutes to build: `make deny`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What stands between quotes in a list of the file.
fn list(text: &str, key: &str) -> BTreeSet<String> {
    let (_, rest) = text.split_once(&format!("\n{key} = [\n")).unwrap();
    let (lines, _) = rest.split_once("\n]").unwrap();
    let quoted = |line: &str| line.split('"').nth(1).map(str::to_owned);
    lines.lines().filter_map(quoted).collect()
}

/// Whether a licence expression of SPDX can be met by licences of a list: `AND` binds closer than `OR`, as which `/` counts too.
fn is_met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any(&words, &mut at, allowed);
    assert_eq!(at, words.len(), "{expression}");
    met
}

fn any(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut met = every(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= every(words, at, allowed);
    }
    met
}

fn every(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let word = words[*at];
    *at += 1;
    if word == "(" {
        let met = any(words, at, allowed);
        assert_eq!(words[*at], ")");
        *at += 1;
        return met;
    }
    // An exception only permits more.
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
    }
    allowed.contains(word)
}

/// Every package that is built, or built with.
fn packages(root: &Path) -> Vec<Value> {
    let arguments =
        "metadata --format-version 1 --locked --offline --filter-platform x86_64-unknown-linux-gnu";
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Command::new(cargo).args(arguments.split(' ')).current_dir(root).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    told["packages"].as_array().unwrap().clone()
}

#[test]
fn dependencies_are_such_as_are_allowed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rules = fs::read_to_string(root.join("deny.toml")).unwrap();
    let (allowed, skipped) = (list(&rules, "allow"), list(&rules, "skip"));
    let packages = packages(&root);
    assert!(packages.len() > 100 && allowed.len() > 2, "{allowed:?}");
    let mut versions = BTreeMap::<&str, BTreeSet<Vec<u64>>>::new();
    for package in &packages {
        let [name, version, licence] =
            ["name", "version", "license"].map(|key| package[key].as_str().unwrap_or_default());
        assert!(is_met(licence, &allowed), "{name} {version}: {licence}");
        match package["source"].as_str() {
            Some(source) => assert_eq!(source, REGISTRY, "{name} {version}"),
            None => assert!(name.starts_with("underpass"), "{name}"),
        }
        let numbers = version.split(['+', '-']).next().unwrap().split('.').map(|part| part.parse().unwrap());
        versions.entry(name).or_default().insert(numbers.collect());
    }
    // All but the newest of a crate, as names with versions.
    let older = versions.iter().flat_map(|(name, versions)| {
        let older = versions.iter().rev().skip(1);
        older.map(move |version| {
            format!("{name}@{}", version.iter().map(u64::to_string).collect::<Vec<_>>().join("."))
        })
    });
    assert_eq!(
        older.collect::<BTreeSet<_>>(),
        skipped,
        "deny.toml lists older versions of crates that come twice"
    );
}

#[test]
fn what_meets_an_expression() {
    let allowed = ["MIT", "Zlib"].map(str::to_owned).into();
    for met in [
        "MIT",
        "GPL-3.0 OR MIT",
        "(GPL-3.0 OR MIT) AND Zlib",
        "Apache-2.0/MIT",
        "MIT WITH exception",
        "X AND Y OR MIT",
    ] {
        assert!(is_met(met, &allowed), "{met}");
    }
    for not in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Zlib) AND X", "GPL-3.0 WITH exception"] {
        assert!(!is_met(not, &allowed), "{not}");
    }
}
