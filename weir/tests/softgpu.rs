//! Tests of `weir softgpu` as a user runs it, with a program that loads the driver's library, and of its reports on that program.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use softgpu_wire::softgpu_dir;
use tempfile::TempDir;
use testing::until;

/// Source of a program which loads the driver without NVIDIA's headers, sets 1 MiB of a device's memory, reads it back, prints a
/// line, and waits until its input ends.
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

/// A software GPU's folder. Dropping it ends the server in it.
#[derive(Debug)]
struct SoftGpuDir {
    folder: TempDir,
}

impl SoftGpuDir {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    fn folder(&self) -> PathBuf {
        self.folder.path().join("gpu")
    }

    /// Runs `weir softgpu …` for this folder.
    fn weir(&self, word: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["softgpu", word]).arg("--folder");
        command.arg(self.folder()).args(arguments);
        command.env_remove(softgpu_dir::VARIABLE).output().unwrap()
    }

    /// Runs a command which must succeed, and returns its standard output.
    fn stdout_of(&self, word: &str, arguments: &[&str]) -> String {
        let output = self.weir(word, arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command which must fail with this exit code and nothing on stdout; returns its standard error.
    fn refuses(&self, code: i32, word: &str, arguments: &[&str]) -> String {
        let output = self.weir(word, arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn json(&self, word: &str) -> serde_json::Value {
        serde_json::from_str(&self.stdout_of(word, &["--json"])).unwrap()
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn configuration(&self) -> String {
        fs::read_to_string(self.folder().join(softgpu_dir::CONFIG)).unwrap()
    }

    /// Starts the program and returns it with its line; it waits for the end of its input.
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
            .env_remove(softgpu_dir::VARIABLE)
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

impl Drop for SoftGpuDir {
    fn drop(&mut self) {
        let folder = self.folder();
        let Ok(Some(socket)) = softgpu_dir::connect_in(&folder) else {
            return;
        };
        if let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) {
            let _killed = kill_process(peer.pid, Signal::KILL);
        }
        if !std::thread::panicking() {
            until("the server has ended", || {
                softgpu_dir::lock(&folder, false).unwrap().is_some()
            });
        }
    }
}

/// Returns whether all tags of an XML text are closed in order, with one root.
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
    let softgpu = SoftGpuDir::new();
    let printed = softgpu.stdout_of("path", &[]);
    assert_eq!(printed, format!("{}\n", softgpu.folder().display()));
    for name in [
        "libcuda.so.1",
        "libcuda.so",
        "libnvidia-ml.so.1",
        "nvidia-cuda-mps-control",
        "softgpu-server",
    ] {
        let file = softgpu.folder().join(name);
        assert!(file.metadata().unwrap().is_file(), "{name}");
    }
    assert_eq!(softgpu.folder().metadata().unwrap().mode() & 0o777, 0o755);
    assert!(softgpu.configuration().contains("\"H100\""));

    // The MPS programs are links to this binary.
    let version = Command::new(softgpu.folder().join("nvidia-cuda-mps-control"))
        .arg("-v")
        .output()
        .unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    assert!(version.contains("MPS Control binary version"), "{version}");
    let server = Command::new(softgpu.folder().join("softgpu-server"))
        .output()
        .unwrap();
    let usage = String::from_utf8(server.stderr).unwrap();
    assert!(usage.contains("--folder is needed"), "{usage}");
    assert_eq!(server.status.code(), Some(2));
    for (option, begin) in [
        ("--help", "usage: softgpu-server "),
        ("--version", "softgpu-server 0."),
    ] {
        let server = Command::new(softgpu.folder().join("softgpu-server"))
            .arg(option)
            .output()
            .unwrap();
        let printed = String::from_utf8(server.stdout).unwrap();
        assert!(printed.starts_with(begin), "{option}: {printed}");
        assert_eq!(server.status.code(), Some(0), "{option}");
    }

    // Without options the configuration stays, byte for byte.
    let own = "# ours\nbytes = 64\n[[kernel]]\nname = \"add\"\nduration-us = 7\n";
    fs::write(softgpu.folder().join(softgpu_dir::CONFIG), own).unwrap();
    softgpu.stdout_of("path", &[]);
    assert_eq!(softgpu.configuration(), own);
    // Settings that options cannot express are not dropped.
    let why = softgpu.refuses(2, "path", &["--gpu", "V100"]);
    assert!(why.contains("softgpu.toml: has [[kernel]]"), "{why}");
    fs::write(softgpu.folder().join(softgpu_dir::CONFIG), "bytes = 0").unwrap();
    let why = softgpu.refuses(2, "path", &[]);
    assert!(
        why.contains("softgpu.toml: bytes = 0: allowed: 1 to 512"),
        "{why}"
    );
}

#[test]
fn options_become_the_configuration() {
    let softgpu = SoftGpuDir::new();
    let mig = "[[gpu]]\nslices = [\"3g.40gb\", \"4g.40gb\"]\n[[gpu]]\nslices = []\n";
    let mig = softgpu.file("mig.toml", mig);
    let mig = mig.to_str().unwrap();
    softgpu.stdout_of(
        "path",
        &["--gpu", "a100", "--gpus", "3", "--mig", mig, "--time", "2"],
    );
    assert_eq!(
        softgpu.configuration(),
        "time = 2\nbytes = 1\nledger-mib = 64\n\n\
         [[gpu]]\npart = \"A100-80GB\"\nslices = [\"3g.40gb\", \"4g.40gb\"]\n\n\
         [[gpu]]\npart = \"A100-80GB\"\ncount = 2\n"
    );
    softgpu.stdout_of("path", &["--bytes", "64", "--ledger-mib", "7"]);
    assert_eq!(
        softgpu.configuration(),
        "time = 1\nbytes = 64\nledger-mib = 7\n\n[[gpu]]\npart = \"H100\"\n"
    );
}

#[test]
fn refused_options_state_the_allowed_values() {
    let softgpu = SoftGpuDir::new();
    let yaml = softgpu.file("mig.yaml", "version: v1\nmig-configs:\n  all-1g.10gb:\n");
    let wrong = softgpu.file("wrong.toml", "[[gpu]]\nslices = [\"9g.1tb\"]\n");
    let two = softgpu.file("two.toml", "[[gpu]]\nslices = []\n[[gpu]]\nslices = []\n");
    let cut = softgpu.file("cut.toml", "[[gpu]]\nslices = [9\n");
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
        let why = softgpu.refuses(2, "path", arguments);
        assert!(why.contains(allowed), "{arguments:?}: {why}");
        assert_eq!(why.trim_end().lines().count(), 1, "{arguments:?}: {why}");
    }
    assert!(!softgpu.folder().exists());
    for word in ["ledger", "status"] {
        let why = softgpu.refuses(2, word, &[]);
        assert!(why.contains("no such folder"), "{why}");
    }

    softgpu.stdout_of("path", &[]);
    for (word, arguments, code, expected) in [
        ("ledger", &[][..], 1, "no ledger"),
        ("ledger", &["--from", "2", "--to", "1"], 2, "less than --to"),
        ("ledger", &["--from", "soon"], 2, "a number of ms"),
        ("ledger", &["--unit", "1"], 2, "--unit 1: allowed: 0 to 0"),
        ("ledger", &["--csv", "--json"], 2, "cannot be used with"),
        ("status", &[], 1, "no server runs there"),
        ("inject", &["--xid", "79"], 1, "no server runs there"),
        ("inject", &["--xid", "0"], 2, "from 1 to 999"),
    ] {
        let why = softgpu.refuses(code, word, arguments);
        assert!(why.contains(expected), "{word} {arguments:?}: {why}");
    }
    let colon = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["softgpu", "path", "--folder", "/tmp/a:b"])
        .output()
        .unwrap();
    assert_eq!(colon.status.code(), Some(2));
}

#[test]
fn ledger_and_status_report_a_running_program() {
    let softgpu = SoftGpuDir::new();
    let options = ["--gpu", "A100", "--gpus", "2", "--bytes", "64"];
    softgpu.stdout_of("path", &options);
    let (mut child, line) = softgpu.program();
    assert_eq!(line, "2 NVIDIA A100-SXM4-80GB 7\n");
    let pid = child.id();

    // The same configuration is no change; a different one is refused while a program runs.
    softgpu.stdout_of("path", &options);
    let why = softgpu.refuses(1, "path", &["--gpu", "V100"]);
    assert!(
        why.contains("1 program uses it") && why.contains("end it with `kill "),
        "{why}"
    );

    let status = softgpu.json("status");
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
    let text = softgpu.stdout_of("status", &[]);
    assert!(
        text.contains(&pid.to_string()) && text.contains("lag"),
        "{text}"
    );

    let ledger = softgpu.json("ledger");
    let process = &ledger["processes"][0];
    assert_eq!(
        (&process["process"], &process["unit"]),
        (&pid.into(), &1.into())
    );
    assert_eq!(process["link_bytes"], 1 << 20);
    assert!(process["memory_peak_bytes"].as_u64().unwrap() > 1 << 20);
    let text = softgpu.stdout_of("ledger", &[]);
    assert!(
        text.contains(&pid.to_string()) && text.contains("GPU 1"),
        "{text}"
    );
    let csv = softgpu.stdout_of("ledger", &["--csv", "--process", &pid.to_string()]);
    assert!(
        csv.contains(&format!("memory_bytes,1,GPU 1,1,{pid},")),
        "{csv}"
    );
    assert_eq!(
        softgpu
            .stdout_of("ledger", &["--csv", "--unit", "0"])
            .lines()
            .count(),
        1
    );

    let file = softgpu.folder.path().join("drawing.svg");
    softgpu.stdout_of("ledger", &["--svg", file.to_str().unwrap()]);
    let drawing = fs::read_to_string(&file).unwrap();
    assert!(is_well_formed(&drawing), "{drawing}");
    for expected in [
        &format!("process {pid}"),
        "GPU 1: memory held",
        "link from GPU 1",
    ] {
        assert!(drawing.contains(expected), "{expected}: {drawing}");
    }
    assert_eq!(
        softgpu.stdout_of("ledger", &["--svg", "-"]).lines().next(),
        drawing.lines().next()
    );

    let why = softgpu.refuses(2, "inject", &["--gpu", "2", "--xid", "79"]);
    assert!(why.contains("--gpu 2: allowed: 0 to 1"), "{why}");
    softgpu.stdout_of("inject", &["--gpu", "1", "--xid", "79"]);
    assert_eq!(softgpu.json("status")["units"][1]["is_lost"], true);

    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    until("the program is gone", || {
        softgpu.json("status")["statistics"]["clients"] == 0
    });
}

#[test]
fn the_ledger_has_memory_as_held_until_its_process_is_killed() {
    const IDLE: Duration = Duration::from_millis(300);
    let softgpu = SoftGpuDir::new();
    softgpu.stdout_of("path", &["--gpu", "A100", "--gpus", "2", "--bytes", "64"]);
    let (mut child, _) = softgpu.program();
    let pid = child.id().to_string();
    // No request is made meanwhile.
    let begin = Instant::now();
    until("nothing has happened for a while", || {
        begin.elapsed() >= IDLE
    });
    child.kill().unwrap();
    child.wait().unwrap();
    until("the program is gone", || {
        softgpu.json("status")["statistics"]["clients"] == 0
    });
    let csv = softgpu.stdout_of("ledger", &["--csv", "--process", &pid]);
    let held = csv.lines().filter_map(|line| {
        let line = line.strip_prefix("memory_bytes,")?;
        let fields: Vec<&str> = line.split(',').collect();
        let ms = |field: usize| fields[field].parse::<f64>().unwrap();
        Some(ms(6) - ms(5))
    });
    assert!(held.sum::<f64>() >= IDLE.as_secs_f64() * 1e3, "{csv}");
}

#[test]
fn the_server_runs_in_the_foreground_until_a_signal() {
    let softgpu = SoftGpuDir::new();
    let mut server = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["softgpu", "server", "--stay", "--folder"])
        .arg(softgpu.folder())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(server.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert_eq!(softgpu.json("status")["server"], server.id());
    let pid = Pid::from_child(&server);
    kill_process(pid, Signal::TERM).unwrap();
    server.wait().unwrap();
    softgpu.refuses(1, "status", &[]);
}

#[test]
fn the_default_folders_follow_the_environment() {
    let home = tempfile::tempdir().unwrap();
    let path = |variables: &[(&str, &Path)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["softgpu", "path"]);
        for name in [softgpu_dir::VARIABLE, "XDG_CACHE_HOME", "HOME"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied()).output().unwrap()
    };
    let output = path(&[("HOME", home.path())]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let folder = home.path().join(".cache/weir/softgpu");
    assert_eq!(Path::new(printed.trim_end()), folder);
    let output = path(&[]);
    assert_eq!(output.status.code(), Some(2));

    // Programs use the folder of the variable, so another folder would not be used.
    let other = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["softgpu", "path", "--folder"])
        .arg(home.path().join("other"))
        .env(softgpu_dir::VARIABLE, &folder)
        .output()
        .unwrap();
    let printed = String::from_utf8(other.stderr).unwrap();
    assert!(printed.contains("WEIR_SOFTGPU is set to"), "{printed}");
    assert_eq!(other.status.code(), Some(0));
}
