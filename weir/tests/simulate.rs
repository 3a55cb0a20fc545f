//! `weir simulate` as its users meet it: the real binary, its files, its messages, its exit codes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn docs(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/simulate")
        .join(file)
}

/// A folder with a cluster, functions and a trace of two functions.
struct Folder(tempfile::TempDir);

const CLUSTER: &str = "price_per_gpu_hour = 2.0\n[node]\ngpus = 1\nmodels_gb = 20\nhost_gb = 100\n[link]\nhost_gb_per_s = 10\n";
const FUNCTIONS: &str =
    "[default]\nobjective_ms = 100\n[[model]]\nname = \"m\"\nweights_mb = 200\nexecution_ms = 30\n";

impl Folder {
    fn new() -> Self {
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

    fn path(&self, file: &str) -> String {
        self.0.path().join(file).to_str().unwrap().to_owned()
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).unwrap();
    }

    fn command(&self, more: &[&str]) -> Command {
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

    fn run(&self, more: &[&str]) -> Output {
        self.command(&[&["--trace", "trace.csv"], more].concat())
            .output()
            .unwrap()
    }

    fn json(&self, more: &[&str]) -> Value {
        let output = self.run(&[&["--json"], more].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(stderr.is_empty(), "{stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Exit code 2, nothing on stdout, one line on stderr.
fn refusal(output: &Output) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty());
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn a_sweep_says_how_many_gpus_are_enough() {
    let folder = Folder::new();
    let whole = folder.json(&["--sweep", "gpus=1..3"]);
    assert_eq!(
        (&whole["interrupted"], &whole["swept"]),
        (&Value::from(false), &Value::from("gpus"))
    );
    assert_eq!(whole["fewest_gpus"][0]["gpus"], 2);
    let runs = whole["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    let limits: Vec<_> = runs
        .iter()
        .map(|run| run["binding"]["limit"].as_str().unwrap())
        .collect();
    assert_eq!(limits, ["gpu-time", "nothing", "nothing"]);
    for (gpus, run) in (1_u32..).zip(runs) {
        assert_eq!(run["gpus"], gpus);
        assert_eq!(run["cost_per_hour"], f64::from(gpus) * 2.0);
        assert!(run["cost"].as_f64().unwrap() > 0.0);
        let functions = run["functions"].as_array().unwrap();
        let names: Vec<_> = functions
            .iter()
            .map(|own| own["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["even", "odd"]);
        let sum: u64 = functions
            .iter()
            .map(|own| own["requests"].as_u64().unwrap())
            .sum();
        assert_eq!(run["requests"].as_u64().unwrap(), sum);
        let mean = run["slots_mean"].as_f64().unwrap();
        assert!(
            mean <= f64::from(gpus) + 1e-9
                && run["slots_peak"].as_u64().unwrap() <= u64::from(gpus)
        );
    }
    // 40 requests a second of 30 ms take 1.2 GPUs.
    let mean = runs[2]["slots_mean"].as_f64().unwrap();
    assert!((1.1..1.3).contains(&mean), "{mean}");
}

#[test]
fn the_same_files_and_seed_give_the_same_bytes() {
    let folder = Folder::new();
    let text = |seed: &str| {
        folder
            .run(&["--json", "--sweep", "gpus=1..2", "--seed", seed])
            .stdout
    };
    assert_eq!(text("1"), text("1"));
    assert_ne!(text("1"), text("2"));
}

#[test]
fn a_table_for_people_says_what_binds() {
    let folder = Folder::new();
    let output = folder.run(&["--rule", "adaptive,arrival-order"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for said in [
        "adaptive",
        "arrival-order",
        "gpu-time",
        "GPU time is used up",
        "even",
        "cost/h",
        "an hour",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let slow = folder.run(&["--rate-scale", "0.5"]);
    let text = String::from_utf8(slow.stdout).unwrap();
    assert!(
        text.contains("Nothing binds: every objective holds"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_kept_has_its_word() {
    let folder = Folder::new();
    let limit = |whole: &Value, at: usize| {
        whole["runs"][0]["functions"][at]["limit"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    folder.write("functions.toml", &FUNCTIONS.replace("= 100", "= 20"));
    assert_eq!(limit(&folder.json(&[]), 0), "objective");
    let large = format!("{FUNCTIONS}[[function]]\nname = \"o*\"\nweights_mb = 30000\n");
    folder.write("functions.toml", &large);
    let whole = folder.json(&["--rate-scale", "0.5"]);
    assert_eq!(
        (limit(&whole, 0), limit(&whole, 1)),
        ("nothing".to_owned(), "memory".to_owned())
    );
    assert_eq!(whole["runs"][0]["functions"][1]["attainment"], 0.0);
    // Two models of which one fits at a time, whose loads take most of the time.
    folder.write(
        "functions.toml",
        &FUNCTIONS.replace("weights_mb = 200", "weights_mb = 600"),
    );
    folder.write(
        "cluster.toml",
        &CLUSTER.replace("models_gb = 20", "models_gb = 1"),
    );
    assert_eq!(limit(&folder.json(&["--rate-scale", "0.6"]), 0), "swapping");
}

#[test]
fn broken_files_are_told_with_file_line_and_key() {
    let folder = Folder::new();
    folder.write("cluster.toml", &CLUSTER.replace("gpus = 1", "gpus = 0"));
    let said = refusal(&folder.run(&[]));
    assert!(
        said.contains("cluster.toml: line 3: node.gpus is 0: a whole number from 1 to 64"),
        "{said}"
    );
    folder.write("cluster.toml", CLUSTER);
    folder.write(
        "functions.toml",
        &FUNCTIONS.replace("execution_ms = 30", "execution_m = 30"),
    );
    let said = refusal(&folder.run(&[]));
    assert!(
        said.contains("functions.toml: line 6: unknown field `execution_m`"),
        "{said}"
    );
    folder.write(
        "functions.toml",
        &FUNCTIONS.replace("execution_ms = 30", ""),
    );
    let said = refusal(&folder.run(&[]));
    assert!(
        said.contains("function \"even\": its execution is not known"),
        "{said}"
    );
    folder.write("functions.toml", FUNCTIONS);
    folder.write("trace.csv", "arrival_s,function\n0.5,a\nsoon,a\n");
    let said = refusal(&folder.run(&[]));
    assert!(
        said.contains("trace.csv: line 3: arrival_s is \"soon\""),
        "{said}"
    );
    let said = refusal(&folder.command(&["--trace", "none.csv"]).output().unwrap());
    assert!(
        said.contains("none.csv") && said.contains("cannot be read"),
        "{said}"
    );
    let said = refusal(&folder.command(&["--generate", "nothing"]).output().unwrap());
    assert!(
        said.contains("no preset \"nothing\"") && said.contains("torpor-node"),
        "{said}"
    );
    let said = refusal(&folder.command(&[]).output().unwrap());
    assert!(
        said.contains("--trace FILE or --generate NAME is needed"),
        "{said}"
    );
    for (arguments, said) in [
        (
            ["--sweep", "gpus=0..4"],
            "gpus is 0: a whole number from 1 to 64",
        ),
        (["--sweep", "slots=1..4"], "gpus, nodes, models-gb"),
        (["--rule", "fastest"], "arrival-order"),
        (["--rate-scale", "0"], "a number from 0.001"),
    ] {
        let output = folder.run(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr.contains(said), "{stderr}");
    }
}

#[test]
fn a_page_stands_alone() {
    let folder = Folder::new();
    let output = folder.run(&["--sweep", "gpus=1..3", "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(0));
    let page = fs::read_to_string(folder.path("page.html")).unwrap();
    for said in [
        "What binds",
        "Attainment over GPUs",
        "within a latency",
        "How busy each GPU was",
        "2 GPUs are the fewest",
    ] {
        assert!(page.contains(said), "{said}");
    }
    for outside in ["http://", "https://", "<script", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn a_made_up_workload_is_run_and_written() {
    let folder = Folder::new();
    folder.write("cluster.toml", "like = \"torpor\"\n");
    folder.write("functions.toml", "models = \"torpor\"\n");
    let made_up = [
        "--generate",
        "torpor-node",
        "--count",
        "24",
        "--seconds",
        "120",
        "--json",
    ];
    let output = folder.command(&made_up).output().unwrap();
    let whole: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &whole["runs"][0];
    assert_eq!(
        (&run["gpus"], &run["functions_keeping"]),
        (&Value::from(4), &Value::from(24))
    );
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .current_dir(folder.0.path())
        .args([
            "simulate",
            "--generate",
            "torpor-node",
            "--count",
            "3",
            "--write-trace",
            "out.csv",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("requests written to out.csv"), "{said}");
    folder.write("functions.toml", FUNCTIONS);
    let output = folder
        .command(&["--trace", "out.csv", "--json"])
        .output()
        .unwrap();
    let whole: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(whole["runs"][0]["functions"].as_array().unwrap().len(), 3);
}

#[test]
fn the_examples_of_the_documentation_are_right() {
    let folder = Folder::new();
    for file in ["cluster.toml", "functions.toml"] {
        fs::copy(docs(file), folder.path(file)).unwrap();
    }
    let whole = folder.json(&[]);
    assert_eq!(whole["runs"][0]["gpus"], 4);
    let models: Vec<_> = whole["runs"][0]["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|own| own["model"].clone())
        .collect();
    assert_eq!(models, ["classifier", "encoder"]);
}

#[test]
fn an_interrupt_gives_what_was_done() {
    let folder = Folder::new();
    folder.write("cluster.toml", "like = \"torpor\"\n");
    folder.write("functions.toml", "models = \"torpor\"\n");
    // Far more than is done by then.
    let endless = [
        "--generate",
        "torpor-node",
        "--count",
        "100",
        "--sweep",
        "rate-scale=0.5..100..0.5",
        "--json",
    ];
    // Nothing shows from outside when the first run begins: with ever more patience.
    for patience in [500, 2_000, 8_000, 30_000] {
        let output = interrupted_after(folder.command(&endless), patience);
        assert_eq!(output.status.code(), Some(130));
        if output.stdout.is_empty() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(
                stderr.contains("interrupted while the trace was read"),
                "{stderr}"
            );
            continue;
        }
        let whole: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(whole["interrupted"], true);
        let runs = whole["runs"].as_array().unwrap();
        assert!(!runs.is_empty() && runs.len() < 200, "{}", runs.len());
        return;
    }
    panic!("no run was begun");
}

fn interrupted_after(mut command: Command, milliseconds: u64) -> Output {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    // It listens before it has a thread of its own to run on.
    let threads = format!("/proc/{}/task", child.id());
    while fs::read_dir(&threads).map_or(0, Iterator::count) < 2 {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "it does not begin"
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
    std::thread::park_timeout(Duration::from_millis(milliseconds));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn an_unknown_experiment_is_told_which_there_are() {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["simulate", "experiment", "no-such"])
        .output()
        .unwrap();
    assert!(refusal(&output).contains("there is no experiment \"no-such\"; allowed:"));
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["simulate", "experiment"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ID"));
}
