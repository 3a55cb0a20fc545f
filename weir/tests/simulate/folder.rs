//! A folder with the inputs of a small simulation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) fn docs(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/simulate")
        .join(file)
}

/// A folder with a cluster, functions and a trace of two functions.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) tempfile::TempDir);

pub(crate) const CLUSTER: &str = "price_per_gpu_hour = 2.0\n[node]\ngpus = 1\nmodels_gb = 20\nhost_gb = 100\n[link]\nhost_gb_per_s = 10\n";
pub(crate) const FUNCTIONS: &str =
    "[default]\nobjective_ms = 100\n[[model]]\nname = \"m\"\nweights_mb = 200\nexecution_ms = 30\n";

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("cluster.toml", CLUSTER);
        folder.write("functions.toml", FUNCTIONS);
        // Forty requests a second of 30 ms each: one GPU is too little, two are enough.
        let mut trace = "arrival_s,function\n".to_owned();
        for at in 0..800 {
            let function = if at % 2 == 0 { "even" } else { "odd" };
            trace.push_str(&format!("{}.{:03},{function}\n", at / 40, at % 40 * 25));
        }
        folder.write("trace.csv", &trace);
        folder
    }

    pub(crate) fn path(&self, file: &str) -> String {
        self.0.path().join(file).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).unwrap();
    }

    pub(crate) fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .current_dir(self.0.path())
            .args([
                "simulate",
                "--cluster",
                "cluster.toml",
                "--functions",
                "functions.toml",
            ])
            .args(more);
        command
    }

    pub(crate) fn run(&self, more: &[&str]) -> Output {
        self.command(&[&["--trace", "trace.csv"], more].concat())
            .output()
            .unwrap()
    }

    pub(crate) fn json(&self, more: &[&str]) -> Value {
        let output = self.run(&[&["--json"], more].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(stderr.is_empty(), "{stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Asserts exit code 2, nothing on stdout and one line on stderr; returns that line.
pub(crate) fn refusal(output: &Output) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty());
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    stderr
}
