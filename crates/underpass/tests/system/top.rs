//! `underpass top` in a terminal of its own: script(1) makes one.

use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use underpass_daemon::testbed::{self, Namespace, Router};

use crate::net::{self, program};

const PATIENCE: Duration = Duration::from_secs(10);
const ROWS: usize = 30;
const COLUMNS: usize = 120;

/// What is on the screen after all that was written: text, and where the cursor is told to go (`CSI row ; column H`).
fn screen(written: &str) -> Vec<String> {
    let mut cells = vec![vec![' '; COLUMNS]; ROWS];
    let (mut row, mut column) = (0, 0);
    let mut rest = written.chars();
    while let Some(character) = rest.next() {
        if character != '\x1b' {
            if let Some(cell) = cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                *cell = character;
            }
            column += 1;
            continue;
        }
        // CSI parameters, and a letter that says what they are for.
        let mut parameters = String::new();
        let last = rest.by_ref().skip(1).find(|character| {
            parameters.push(*character);
            character.is_ascii_alphabetic()
        });
        if last == Some('H')
            && let Some((to_row, to_column)) = parameters.trim_end_matches('H').split_once(';')
        {
            (row, column) = (to_row.parse::<usize>().unwrap() - 1, to_column.parse::<usize>().unwrap() - 1);
        }
    }
    cells.into_iter().map(|row| row.into_iter().collect::<String>().trim_end().to_owned()).collect()
}

/// A program in a terminal.
struct Terminal {
    keys: ChildStdin,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    fn press(&mut self, key: char) {
        self.keys.write_all(key.to_string().as_bytes()).unwrap();
    }

    /// The screen, as soon as it is as wanted.
    fn wait(&self, what: &str, wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let written = self.written();
            let lines = screen(written.rsplit("\x1b[?1049h").next().unwrap());
            if wanted(&lines) {
                return lines;
            }
            assert!(Instant::now() < deadline, "{what}: {lines:#?}\n{written:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Runs lines of a shell in a terminal.
fn open(space: &Namespace, lines: &str) -> (Child, Terminal, thread::JoinHandle<()>) {
    let mut command = space.command("script");
    command.args(["-qec", lines, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let terminal = Terminal { keys: child.stdin.take().unwrap(), written: Arc::default() };
    let (mut output, written) = (child.stdout.take().unwrap(), Arc::clone(&terminal.written));
    let reader = thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = output.read(&mut piece) {
            written.lock().unwrap().extend(&piece[..length]);
        }
    });
    (child, terminal, reader)
}

/// It ends when its terminal goes away, as that of a lost connection does.
#[test]
fn top_without_its_terminal() {
    let Some(_turn) = net::turn("top_without_its_terminal") else { return };
    let space = net::namespace("r");
    let router = Router::start(program(), &space, &[]).unwrap();
    let number = tempfile::NamedTempFile::new().unwrap();
    let lines = format!(
        "stty rows {ROWS} cols {COLUMNS}; echo $$ > {}; exec {} top",
        number.path().display(),
        program().display()
    );
    let (mut child, terminal, reader) = open(&space, &lines);
    terminal.wait("the overview", |lines| lines[0].starts_with("underpass "));
    let process = std::fs::read_to_string(number.path()).unwrap();
    let running = format!("/proc/{}", process.trim());
    assert!(std::path::Path::new(&running).exists());
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while std::path::Path::new(&running).exists() {
        assert!(Instant::now() < deadline, "{running} is still there");
        thread::sleep(Duration::from_millis(50));
    }
    router.stop().unwrap();
}

/// It opens, shows the ports, sorts them, ends at `q`, and the terminal is as it was.
#[test]
fn top_in_a_terminal() {
    let Some(_turn) = net::turn("top_in_a_terminal") else { return };
    let [host, space] = ["h", "r"].map(net::namespace);
    for (device, other) in [("v1", "e1"), ("v2", "e2")] {
        testbed::join(&space, device, &host, other).unwrap();
        space.run(&format!("ip link set {device} up")).unwrap();
        host.run(&format!("ip link set {other} up")).unwrap();
    }
    let router = Router::start(program(), &space, &[]).unwrap();

    let lines = format!(
        "stty rows {ROWS} cols {COLUMNS}; before=$(stty -g); {} top --view ports; echo \"ended $?\"; \
         [ \"$before\" = \"$(stty -g)\" ] && echo restored",
        program().display()
    );
    let (mut child, mut terminal, reader) = open(&space, &lines);
    let row = |lines: &[String], name: &str| {
        lines.iter().position(|line| line.starts_with(&format!("{name} ")) && line.contains(" up "))
    };
    let shown = |lines: &[String]| row(lines, "v1").is_some() && row(lines, "v2").is_some();
    let first = terminal.wait("the ports", shown);
    assert!(first[0].starts_with("underpass "), "{first:#?}");
    assert!(first[ROWS - 1].ends_with("sort: in/s"), "{first:#?}");
    terminal.press('s');
    let sorted = terminal.wait("sorted", |lines| lines[ROWS - 1].ends_with("sort: port"));
    assert!(row(&sorted, "v1") < row(&sorted, "v2"), "{sorted:#?}");
    terminal.press('r');
    let reversed = terminal.wait("reversed", |lines| lines[ROWS - 1].ends_with("sort: port reversed"));
    assert!(row(&reversed, "v1") > row(&reversed, "v2"), "{reversed:#?}");
    terminal.press('q');
    assert!(child.wait().unwrap().success());
    reader.join().unwrap();
    let written = terminal.written();
    let (_, after) = written.split_once("\x1b[?1049l").unwrap();
    assert!(after.contains("ended 0") && after.contains("restored"), "{written:?}");
    router.stop().unwrap();
}
