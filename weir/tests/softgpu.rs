//! `weir softgpu` as its users meet it: the real binary, a program that loads the driver's library, what is told of it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use softgpu_wire::place;
use tempfile::TempDir;

/// Loads the driver as a program without NVIDIA's headers does, sets 1 MiB of a device's memory, reads it back, says so, and
/// stays until its input ends.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#define CALL(name, types, ...) do { \
    int (*call) types = (int (*) types)dlsym(library, #name); \
    int result = call ? call(__VA_ARGS__) : -1; \
    if (result) { printf("%s: %d\n", #name, result); return 1; } \
} while (0)
static unsigned char bytes[1 << 20];
int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int count;
    char name[96];
    unsigned long long memory;
    if (!library) { puts(dlerror()); return 1; }
    CALL(cuInit, (unsigned), 0);
    CALL(cuDeviceGetCount, (int *), &count);
    CALL(cuDeviceGetName, (char *, int, int), name, sizeof name, 1);
    CALL(cuCtxCreate_v2, (void **, unsigned, int), &context, 0, 1);
    CALL(cuMemAlloc_v2, (unsigned long long *, size_t), &memory, sizeof bytes);
    CALL(cuMemsetD8_v2, (unsigned long long, unsigned char, size_t), memory, 7, sizeof bytes);
    CALL(cuMemcpyDtoH_v2, (void *, unsigned long long, size_t), bytes, memory, sizeof bytes);
    printf("%d %s %d\n", count, name, bytes[sizeof bytes - 1]);
    fflush(stdout);
    getchar();
    return 0;
}
"#;

/// Whatever is waited for has to come within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder, and the server in it, which ends with the test.
#[derive(Debug)]
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    fn folder(&self) -> PathBuf {
        self.folder.path().join("gpu")
    }

    /// `weir softgpu …` for this folder.
    fn weir(&self, word: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["softgpu", word]).arg("--folder");
        command.arg(self.folder()).args(arguments);
        command.env_remove(place::VARIABLE).output().unwrap()
    }

    /// What it prints, where it has to succeed.
    fn says(&self, word: &str, arguments: &[&str]) -> String {
        let output = self.weir(word, arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it refuses with, with this exit code and nothing on stdout.
    fn refuses(&self, code: i32, word: &str, arguments: &[&str]) -> String {
        let output = self.weir(word, arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn json(&self, word: &str) -> serde_json::Value {
        serde_json::from_str(&self.says(word, &["--json"])).unwrap()
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn configuration(&self) -> String {
        fs::read_to_string(self.folder().join(place::CONFIG)).unwrap()
    }

    /// A program that has said its line and waits for the end of its input.
    fn program(&self) -> (Child, String) {
        let source = self.file("program.c", PROGRAM);
        let program = source.with_extension("");
        let built = Command::new("cc")
            .arg("-o")
            .args([&program, &source])
            .arg("-ldl")
            .status()
            .unwrap();
        assert!(built.success());
        let mut child = Command::new(program)
            .env_remove(place::VARIABLE)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env("LD_LIBRARY_PATH", self.folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        (child, line)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let folder = self.folder();
        let Ok(Some(socket)) = place::connect_in(&folder) else {
            return;
        };
        if let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) {
            let _killed = kill_process(peer.pid, Signal::KILL);
        }
        if !std::thread::panicking() {
            until("the server has ended", || {
                place::lock(&folder, false).unwrap().is_some()
            });
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 2_000_000,
        };
        poll(&mut [], Some(&moment)).unwrap();
    }
}

/// Every tag is closed in its order, and there is one outermost.
fn is_well_formed(text: &str) -> bool {
    let mut open = Vec::new();
    let mut outermost = 0;
    for part in text.split('<').skip(1) {
        let Some((tag, between)) = part.split_once('>') else {
            return false;
        };
        if between
            .replace("&lt;", "")
            .replace("&gt;", "")
            .contains('>')
        {
            return false;
        }
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return false;
            }
        } else {
            outermost += usize::from(open.is_empty());
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
    }
    open.is_empty() && outermost == 1
}

#[test]
fn path_prints_a_folder_with_nvidias_names() {
    let place = Place::new();
    let said = place.says("path", &[]);
    assert_eq!(said, format!("{}\n", place.folder().display()));
    for name in [
        "libcuda.so.1",
        "libcuda.so",
        "libnvidia-ml.so.1",
        "nvidia-cuda-mps-control",
        "softgpu-server",
    ] {
        let file = place.folder().join(name);
        assert!(file.metadata().unwrap().is_file(), "{name}");
    }
    assert_eq!(place.folder().metadata().unwrap().mode() & 0o777, 0o755);
    assert!(place.configuration().contains("\"H100\""));

    // The programs are this one, by other names.
    let version = Command::new(place.folder().join("nvidia-cuda-mps-control"))
        .arg("-v")
        .output()
        .unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    assert!(version.contains("MPS Control binary version"), "{version}");
    let server = Command::new(place.folder().join("softgpu-server"))
        .output()
        .unwrap();
    let usage = String::from_utf8(server.stderr).unwrap();
    assert!(usage.contains("--folder is needed"), "{usage}");
    assert_eq!(server.status.code(), Some(2));
    for (option, begin) in [
        ("--help", "usage: softgpu-server "),
        ("--version", "softgpu-server 0."),
    ] {
        let server = Command::new(place.folder().join("softgpu-server"))
            .arg(option)
            .output()
            .unwrap();
        let printed = String::from_utf8(server.stdout).unwrap();
        assert!(printed.starts_with(begin), "{option}: {printed}");
        assert_eq!(server.status.code(), Some(0), "{option}");
    }

    // Without options what is configured stays, to the letter.
    let own = "# ours\nbytes = 64\n[[kernel]]\nname = \"add\"\nduration-us = 7\n";
    fs::write(place.folder().join(place::CONFIG), own).unwrap();
    place.says("path", &[]);
    assert_eq!(place.configuration(), own);
    // What options cannot say is not thrown away.
    let why = place.refuses(2, "path", &["--gpu", "V100"]);
    assert!(why.contains("softgpu.toml: has [[kernel]]"), "{why}");
    fs::write(place.folder().join(place::CONFIG), "bytes = 0").unwrap();
    let why = place.refuses(2, "path", &[]);
    assert!(
        why.contains("softgpu.toml: bytes = 0: allowed: 1 to 512"),
        "{why}"
    );
}

#[test]
fn options_become_the_configuration() {
    let place = Place::new();
    let mig = "[[gpu]]\nslices = [\"3g.40gb\", \"4g.40gb\"]\n[[gpu]]\nslices = []\n";
    let mig = place.file("mig.toml", mig);
    let mig = mig.to_str().unwrap();
    place.says(
        "path",
        &["--gpu", "a100", "--gpus", "3", "--mig", mig, "--time", "2"],
    );
    assert_eq!(
        place.configuration(),
        "time = 2\nbytes = 1\nledger-mib = 64\n\n\
         [[gpu]]\npart = \"A100-80GB\"\nslices = [\"3g.40gb\", \"4g.40gb\"]\n\n\
         [[gpu]]\npart = \"A100-80GB\"\ncount = 2\n"
    );
    place.says("path", &["--bytes", "64", "--ledger-mib", "7"]);
    assert_eq!(
        place.configuration(),
        "time = 1\nbytes = 64\nledger-mib = 7\n\n[[gpu]]\npart = \"H100\"\n"
    );
}

#[test]
fn options_that_cannot_be_are_refused_and_say_what_can() {
    let place = Place::new();
    let yaml = place.file("mig.yaml", "version: v1\nmig-configs:\n  all-1g.10gb:\n");
    let wrong = place.file("wrong.toml", "[[gpu]]\nslices = [\"9g.1tb\"]\n");
    let two = place.file("two.toml", "[[gpu]]\nslices = []\n[[gpu]]\nslices = []\n");
    let cut = place.file("cut.toml", "[[gpu]]\nslices = [9\n");
    let [yaml, wrong, two, cut] = [&yaml, &wrong, &two, &cut].map(|path| path.to_str().unwrap());
    for (arguments, allowed) in [
        (&["--gpu", "K80"][..], "known: V100, A100-80GB, H100, H200"),
        (&["--gpus", "65"], "from 1 to 64"),
        (&["--bytes", "0"], "from 1 to 512"),
        (&["--time", "9"], "from 1 to 8"),
        (&["--ledger-mib", "0"], "from 1 to 65536"),
        (
            &["--mig", "/nonexistent"],
            "--mig /nonexistent: No such file",
        ),
        (&["--mig", yaml], "TOML is needed"),
        (
            &["--mig", wrong],
            "wrong.toml: GPU 0: 9g.1tb: no such profile; known: 1g.10gb",
        ),
        (&["--mig", cut], "line 2, column 12: unclosed array"),
        (&["--mig", two, "--gpus", "1"], "--mig has 2 tables"),
        (&["--mig", two, "--gpu", "V100", "--speed"], "--speed"),
    ] {
        let why = place.refuses(2, "path", arguments);
        assert!(why.contains(allowed), "{arguments:?}: {why}");
        assert_eq!(why.trim_end().lines().count(), 1, "{arguments:?}: {why}");
    }
    assert!(!place.folder().exists());
    for word in ["ledger", "status"] {
        let why = place.refuses(2, word, &[]);
        assert!(why.contains("no such folder"), "{why}");
    }

    place.says("path", &[]);
    for (word, arguments, code, said) in [
        ("ledger", &[][..], 1, "no ledger"),
        ("ledger", &["--from", "2", "--to", "1"], 2, "less than --to"),
        ("ledger", &["--from", "soon"], 2, "a number of ms"),
        ("ledger", &["--unit", "1"], 2, "--unit 1: allowed: 0 to 0"),
        ("ledger", &["--csv", "--json"], 2, "cannot be used with"),
        ("status", &[], 1, "no server runs there"),
        ("inject", &["--xid", "79"], 1, "no server runs there"),
        ("inject", &["--xid", "0"], 2, "from 1 to 999"),
    ] {
        let why = place.refuses(code, word, arguments);
        assert!(why.contains(said), "{word} {arguments:?}: {why}");
    }
    let colon = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["softgpu", "path", "--folder", "/tmp/a:b"])
        .output()
        .unwrap();
    assert_eq!(colon.status.code(), Some(2));
}

#[test]
fn a_program_runs_and_all_is_told_of_it() {
    let place = Place::new();
    let options = ["--gpu", "A100", "--gpus", "2", "--bytes", "64"];
    place.says("path", &options);
    let (mut child, line) = place.program();
    assert_eq!(line, "2 NVIDIA A100-SXM4-80GB 7\n");
    let pid = child.id();

    // The same configuration is no change; another one is not put under a program that runs.
    place.says("path", &options);
    let why = place.refuses(1, "path", &["--gpu", "V100"]);
    assert!(
        why.contains("1 program uses it") && why.contains("end it with `kill "),
        "{why}"
    );

    let status = place.json("status");
    assert_eq!(status["running"], true);
    assert_eq!(status["statistics"]["clients"], 1);
    assert_eq!(status["statistics"]["scale"]["bytes"], 64);
    let unit = &status["units"][1];
    assert_eq!(
        (unit["gpu"].as_u64(), unit["sms"].as_u64()),
        (Some(1), Some(108))
    );
    assert_eq!(unit["processes"][0]["process"], pid);
    assert!(unit["processes"][0]["memory_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(status["units"][0]["processes"], serde_json::json!([]));
    let text = place.says("status", &[]);
    assert!(
        text.contains(&pid.to_string()) && text.contains("lag"),
        "{text}"
    );

    let ledger = place.json("ledger");
    let process = &ledger["processes"][0];
    assert_eq!(
        (&process["process"], &process["unit"]),
        (&pid.into(), &1.into())
    );
    assert_eq!(process["link_bytes"], 1 << 20);
    assert!(process["memory_peak_bytes"].as_u64().unwrap() > 1 << 20);
    let text = place.says("ledger", &[]);
    assert!(
        text.contains(&pid.to_string()) && text.contains("GPU 1"),
        "{text}"
    );
    let csv = place.says("ledger", &["--csv", "--process", &pid.to_string()]);
    assert!(
        csv.contains(&format!("memory_bytes,1,GPU 1,1,{pid},")),
        "{csv}"
    );
    assert_eq!(
        place
            .says("ledger", &["--csv", "--unit", "0"])
            .lines()
            .count(),
        1
    );

    let file = place.folder.path().join("drawing.svg");
    place.says("ledger", &["--svg", file.to_str().unwrap()]);
    let drawing = fs::read_to_string(&file).unwrap();
    assert!(is_well_formed(&drawing), "{drawing}");
    for said in [
        &format!("process {pid}"),
        "GPU 1: memory held",
        "link from GPU 1",
    ] {
        assert!(drawing.contains(said), "{said}: {drawing}");
    }
    assert_eq!(
        place.says("ledger", &["--svg", "-"]).lines().next(),
        drawing.lines().next()
    );

    let why = place.refuses(2, "inject", &["--gpu", "2", "--xid", "79"]);
    assert!(why.contains("--gpu 2: allowed: 0 to 1"), "{why}");
    place.says("inject", &["--gpu", "1", "--xid", "79"]);
    assert_eq!(place.json("status")["units"][1]["is_lost"], true);

    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    until("the program is gone", || {
        place.json("status")["statistics"]["clients"] == 0
    });
}

#[test]
fn the_server_runs_in_the_foreground_until_it_is_told() {
    let place = Place::new();
    let mut server = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["softgpu", "server", "--stay", "--folder"])
        .arg(place.folder())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(server.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert_eq!(place.json("status")["server"], server.id());
    let pid = Pid::from_child(&server);
    kill_process(pid, Signal::TERM).unwrap();
    server.wait().unwrap();
    place.refuses(1, "status", &[]);
}

#[test]
fn files_are_where_people_expect_them() {
    let home = tempfile::tempdir().unwrap();
    let path = |variables: &[(&str, &Path)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["softgpu", "path"]);
        for name in [place::VARIABLE, "XDG_CACHE_HOME", "HOME"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied()).output().unwrap()
    };
    let output = path(&[("HOME", home.path())]);
    let said = String::from_utf8(output.stdout).unwrap();
    let folder = home.path().join(".cache/weir/softgpu");
    assert_eq!(Path::new(said.trim_end()), folder);
    let output = path(&[]);
    assert_eq!(output.status.code(), Some(2));

    // Programs go by the variable: another folder than that one would not be used.
    let other = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["softgpu", "path", "--folder"])
        .arg(home.path().join("other"))
        .env(place::VARIABLE, &folder)
        .output()
        .unwrap();
    let said = String::from_utf8(other.stderr).unwrap();
    assert!(said.contains("WEIR_SOFTGPU is set to"), "{said}");
    assert_eq!(other.status.code(), Some(0));
}
