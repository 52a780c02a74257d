//! Lines of `ip` and `tc` that a router is configured by, many by one process.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use underpass_daemon::offline::Offline;
use underpass_daemon::script::{configure, configure_all, parse};

#[test]
fn words_are_what_they_were() {
    let (router, ..) = Offline::new(&["p0".parse().unwrap()], 1).unwrap();
    for alias in ["two words", "it's", "a\"b c", "\"b", "a#b", "a\\", "a'b\"c d"] {
        let quoted = shlex::try_quote(alias).unwrap();
        let text = format!("ip link set p0 alias {quoted}\nip link set p0 mtu 1400\nip link set p0 up");
        configure(&router, Path::new("x"), &parse(Path::new("x"), &text).unwrap()).unwrap();
        let shown = router.run_line("ip -j link show p0").unwrap().stdout;
        let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
        assert_eq!(shown[0]["ifalias"], alias, "{quoted}");
    }
}

#[test]
fn a_line_that_fails_is_named_with_what_the_tool_says() {
    let (router, ..) = Offline::new(&["p0".parse().unwrap()], 1).unwrap();
    let text = "ip link set p0 up\nip link set p9 up\n\nip link set p8 up\nip addr add 10.0.0.1/24 dev p0";
    let (file, lines) = (Path::new("x.conf"), parse(Path::new("x.conf"), text).unwrap());
    let addresses = || String::from_utf8(router.run_line("ip -4 addr show p0").unwrap().stdout).unwrap();
    let error = configure(&router, file, &lines).unwrap_err().to_string();
    assert_eq!(error, "x.conf:2: ip link set p9 up: Cannot find device \"p9\"");
    assert_eq!(addresses(), "");
    let errors = configure_all(&router, file, &lines).into_iter().map(|error| error.to_string());
    let expected = [(2, "p9"), (4, "p8")]
        .map(|(line, dev)| format!("x.conf:{line}: ip link set {dev} up: Cannot find device \"{dev}\""));
    assert!(errors.eq(expected));
    assert!(addresses().contains("10.0.0.1/24"));
}

/// A tool that ends at a line, be it for a word that it does not know, says nothing of which line it was; those behind it
/// are run by another.
#[test]
fn a_line_at_which_the_tool_ends_is_found() {
    let (router, ..) = Offline::new(&["p0".parse().unwrap()], 1).unwrap();
    let text = "ip link set p0 up\nip neigh add 10.0.0.2 dev p9\nip addr add 10.0.0.1/99 dev p0\n\
                ip neigh add 10.0.0.3 lladdr 02:00:00:00:00:07 dev p0\nip neigh add 10.0.0.3 lladdr 02:00:00:00:00:07 dev p0\n\
                ip link set p0 mtu 1400";
    let (file, lines) = (Path::new("x.conf"), parse(Path::new("x.conf"), text).unwrap());
    let errors = configure_all(&router, file, &lines);
    let expected = [
        "x.conf:2: ip neigh add 10.0.0.2 dev p9: Cannot find device \"p9\"",
        "x.conf:3: ip addr add 10.0.0.1/99 dev p0: Error: any valid prefix is expected rather than \"10.0.0.1/99\".",
        "x.conf:5: ip neigh add 10.0.0.3 lladdr 02:00:00:00:00:07 dev p0: RTNETLINK answers: File exists",
    ];
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    let shown = String::from_utf8(router.run_line("ip link show p0").unwrap().stdout).unwrap();
    assert!(shown.contains("mtu 1400"), "{shown}");
    // More lines than any socket holds, of which the first is wrong.
    let many = format!("ip addr add x dev p0\n{}", "ip link set p0 up\n".repeat(5000));
    let error = configure(&router, file, &parse(file, &many).unwrap()).unwrap_err();
    assert_eq!(error.line, 1);
    let many = format!("{}ip addr add x dev p0\n", "ip link set p0 up\n".repeat(5000));
    assert_eq!(configure(&router, file, &parse(file, &many).unwrap()).unwrap_err().line, 5001);
}
