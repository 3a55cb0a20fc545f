//! A software GPU with an agent and pods, and programs in them with the preload library before the driver.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use testing::{PATIENCE, until};

use crate::programs::{ptx, sources};
use crate::soft_gpu_dir::{SoftGpuDir, is_gone, signal};

/// Preload libraries of a pod's programs.
pub const LIBRARIES: [&str; 2] = ["libweir_preload.so", "libweir_preload_core.so"];

/// Returns the path at which cargo has built a library of this test.
pub fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join(name);
    assert!(library.exists(), "{library:?}");
    library
}

/// Annotations of a pod without further settings.
pub const SHARED: &str = "weir.dev/isolation=\"shared\"\n";

/// An agent with its pods on a software GPU. Dropping it ends its processes.
#[derive(Debug)]
pub struct Node {
    agent: Option<Child>,
    /// Additional lines of the agent's configuration.
    config: String,
    pub softgpu: SoftGpuDir,
    own: TempDir,
}

impl Node {
    /// Starts an agent on one H100, and a pod that may use all of it.
    pub fn h100() -> Self {
        let node = Self::new(SoftGpuDir::h100(), "");
        node.pod("pod", SHARED, "");
        node
    }

    /// Starts an agent with these additional lines in its configuration, after those of `[node]`.
    pub fn new(softgpu: SoftGpuDir, config: &str) -> Self {
        let mut node = Self {
            agent: None,
            config: config.to_owned(),
            softgpu,
            own: tempfile::Builder::new().prefix("weir-").tempdir().unwrap(),
        };
        let preload = node.file("preload");
        fs::create_dir(&preload).unwrap();
        for name in LIBRARIES {
            let (from, to) = (library(name), preload.join(name));
            if fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to).unwrap();
            }
        }
        node.start();
        node
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.own.path().join(name)
    }

    /// Returns the agent's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("agent.log")).unwrap_or_default()
    }

    /// Starts an agent, which ends with the calling thread.
    pub fn start(&mut self) {
        let run = self.file("run");
        let _of_before = fs::remove_file(run.join("agent.json"));
        let gpu = self.softgpu.folder();
        let mut text = String::from("[node]\n");
        for (key, path) in [
            ("run-directory", run.clone()),
            ("preload", self.file("preload")),
            ("nvml-library", gpu.join("libnvidia-ml.so.1")),
            ("mps-control", gpu.join("nvidia-cuda-mps-control")),
            ("control-address", "127.0.0.1:0".into()),
            ("metrics-address", "127.0.0.1:0".into()),
            ("log", "warn".into()),
        ] {
            if !self.config.starts_with(key) {
                writeln!(text, "{key} = {path:?}").unwrap();
            }
        }
        text += &self.config;
        fs::write(self.file("agent.toml"), text).unwrap();
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.file("agent.log"))
            .unwrap();
        let mut command = Command::new(crate::weir());
        command.args(["child", "gpu-sidecar", "--parent"]);
        command.args([&*std::process::id().to_string(), "--", "run", "--config"]);
        command.arg(self.file("agent.toml"));
        self.softgpu.is_for(&mut command);
        self.agent = Some(command.stderr(log).spawn().unwrap());
        until("the agent listens", || {
            let ended = self.agent.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            run.join("agent.json").exists()
        });
    }

    pub fn agent(&self) -> u32 {
        self.agent.as_ref().unwrap().id()
    }

    /// Kills the agent and waits for its end.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    /// Returns the address of the agent's control API.
    pub fn control(&self) -> String {
        let text = fs::read_to_string(self.file("run/agent.json")).unwrap();
        let state: Value = serde_json::from_str(&text).unwrap();
        state["control"].as_str().unwrap().to_owned()
    }

    /// Runs `gpu-sidecar` with these arguments.
    pub fn gpu_sidecar(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(crate::weir());
        command.args(["child", "gpu-sidecar", "--parent"]);
        command.args([&*std::process::id().to_string(), "--"]);
        command.args(arguments).output().unwrap()
    }

    /// Sends a GET to the agent and returns its JSON answer, if any.
    fn get(&self, path: &str) -> Option<Value> {
        let (status, answer) = self.exchange("GET", path, "");
        (status == 200).then_some(answer)
    }

    /// Sends a POST with this body to the agent, and returns the status and the JSON of the answer.
    pub fn post(&self, path: &str, body: &str) -> (u16, Value) {
        self.exchange("POST", path, body)
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.control()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    /// Returns the agent's state of a pod; null if it is not served.
    pub fn instance(&self, pod: &str) -> Value {
        self.get(&format!("/v1/instances/{pod}"))
            .unwrap_or_default()
    }

    /// Creates a pod with these annotations and this `pod.toml`, and waits until it is served.
    pub fn pod(&self, name: &str, annotations: &str, toml: &str) {
        self.publish(name, annotations, toml);
        until("the pod is served and MPS is up", || {
            // The state of MPS has two forms in the answer.
            let mps = &self.instance(name)["mps"];
            mps["state"] == "up" || mps["state"]["state"] == "up"
        });
    }

    /// Creates a pod without waiting.
    pub fn publish(&self, name: &str, annotations: &str, toml: &str) {
        let pods = self.file("run/pods");
        let making = pods.join(format!(".{name}"));
        fs::create_dir_all(&making).unwrap();
        fs::write(making.join("annotations"), annotations).unwrap();
        fs::write(making.join("pod.toml"), toml).unwrap();
        fs::rename(making, pods.join(name)).unwrap();
    }

    pub fn gate(&self, pod: &str) -> PathBuf {
        self.file("run/pods").join(pod).join("gate")
    }

    /// Runs the command's program in a pod.
    pub fn put(&self, command: &mut Command, pod: &str) {
        preload(command, &self.gate(pod));
    }

    /// Builds a program of `tests/cuda` and returns its path.
    pub fn build(&self, source: &str, options: &[&str]) -> PathBuf {
        let source = sources().join(source).with_extension("c");
        let program = self.file("programs").join(source.file_stem().unwrap());
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        let output = Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .args([&program, &source])
            .args(options)
            .args(["-ldl", "-lpthread"])
            .output()
            .expect("the C programs are built with `cc`: install gcc");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {printed}", source.display());
        program
    }

    /// Returns the command of a program with Weir's kernels, outside of all pods.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = self.softgpu.command(program);
        command.arg(ptx());
        command
    }

    /// Starts a program in a pod.
    pub fn spawn(&self, program: &Path, arguments: &[&str], pod: &str) -> Running {
        let mut command = Command::new(program);
        self.softgpu.is_for(&mut command);
        command.arg(ptx()).args(arguments);
        self.put(&mut command, pod);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped());
        Running(child.spawn().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _written = std::io::stderr().write_all(self.log().as_bytes());
        }
        if let Some(mut agent) = self.agent.take() {
            let _gone = agent.kill();
            let _status = agent.wait();
        }
        // An MPS daemon outlives its agent.
        for slot in fs::read_dir(self.file("run/mps"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let file = slot.path().join("pipe/nvidia-cuda-mps-control.pid");
            let text = fs::read_to_string(file).unwrap_or_default();
            if let Ok(pid) = text.trim().parse()
                && !is_gone(pid)
                && let Some(pid) = Pid::from_raw(pid.cast_signed())
            {
                let _gone = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// A running program, killed when dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Kills it and returns its standard error.
    pub fn end(mut self) -> String {
        signal(self.0.id(), Signal::KILL);
        let mut printed = String::new();
        let mut error = self.0.stderr.take().unwrap();
        error.read_to_string(&mut printed).unwrap();
        printed
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Preloads the libraries in a folder into the command's program.
pub fn preload(command: &mut Command, folder: &Path) {
    command.env_remove("WEIR_PRELOAD_CORE");
    command.env_remove("WEIR_GPU_SOCKET");
    command.env("LD_PRELOAD", folder.join(LIBRARIES[0]));
}

/// Runs a program which must print `ok` and nothing on standard error; returns its standard output.
pub fn comes_to_ok(command: &mut Command) -> String {
    let (out, err) = checked_output(&command.output().unwrap(), command);
    assert_eq!(err, "", "{command:?}");
    out
}

/// Asserts that a program has printed `ok`; returns its standard output and error.
pub fn checked_output(output: &Output, command: &Command) -> (String, String) {
    assert_eq!(output.status.code(), Some(0), "{command:?}: {output:?}");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let out = text(&output.stdout);
    assert!(out.lines().any(|line| line == "ok"), "{command:?}: {out}");
    (out, without_softgpu(&output.stderr))
}

/// Returns standard error without the software GPU's messages about missing functions.
pub fn without_softgpu(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.split_inclusive('\n');
    lines
        .filter(|line| !line.starts_with("softgpu: "))
        .collect()
}
