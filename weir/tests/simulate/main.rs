//! Tests of `weir simulate` as a user runs it: files, messages, exit codes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod folder;
mod interrupts;
mod refusals;

use std::fs;
use std::process::Command;

use serde_json::Value;

use folder::{CLUSTER, FUNCTIONS, Folder, docs};

#[test]
fn a_sweep_finds_the_number_of_gpus() {
    let folder = Folder::new();
    let whole = folder.json(&["--sweep", "gpus=1..3"]);
    assert_eq!(
        (&whole["interrupted"], &whole["swept"]),
        (&Value::from(false), &Value::from("gpus"))
    );
    let answer = &whole["answer"][0];
    assert_eq!(
        (&answer["gpus"], &answer["holds"], &answer["cost_per_hour"]),
        (&Value::from(2), &Value::from(true), &Value::from(4.0))
    );
    let printed = answer["sentence"].as_str().unwrap();
    let begin = "2 GPUs meet the objectives of all 2 functions, each at the worse end of its 95 % interval over 10 seeds, for \
                 4.00 an hour; the fewest of 1 to 3.";
    assert_eq!(printed, begin);
    let more = answer["more"].as_str().unwrap();
    let begin = "With 1 GPU the binding limit is gpu-time: 2 of 2 functions miss their objectives: GPU time is used up";
    assert!(more.starts_with(begin), "{more}");
    assert_eq!(whole["seeds"].as_array().unwrap().len(), 10);
    assert_eq!(whole["arrivals"], "fixed");
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
fn the_table_names_the_binding_resource() {
    let folder = Folder::new();
    let output = folder.run(&["--rule", "adaptive,arrival-order"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for expected in [
        "adaptive",
        "arrival-order",
        "gpu-time",
        "GPU time is used up",
        "even",
        "cost/h",
        "an hour",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let slow = folder.run(&["--rate-scale", "0.5"]);
    let text = String::from_utf8(slow.stdout).unwrap();
    let begin = "Yes: 1 GPU meets the objectives of all 2 functions";
    assert!(text.starts_with(begin), "{text}");
    let text = String::from_utf8(folder.run(&[]).stdout).unwrap();
    assert!(
        text.starts_with("No: 1 GPU does not meet every objective; the binding limit is gpu-time."),
        "{text}"
    );
}

#[test]
fn unattainable_objectives_are_reported_with_their_reason() {
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
    assert_eq!(whole["runs"][0]["functions"][1]["attainment"]["mean"], 0.0);
    // Two models of which one fits at a time, with loads that take most of the time.
    folder.write(
        "functions.toml",
        &FUNCTIONS.replace("weights_mb = 200", "weights_mb = 600"),
    );
    folder.write(
        "cluster.toml",
        &CLUSTER.replace("models_gb = 20", "models_gb = 1"),
    );
    assert_eq!(limit(&folder.json(&["--rate-scale", "0.5"]), 0), "swapping");
}

#[test]
fn a_page_is_self_contained() {
    let folder = Folder::new();
    let output = folder.run(&["--sweep", "gpus=1..3", "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(0));
    let page = fs::read_to_string(folder.path("page.html")).unwrap();
    for expected in [
        "How many GPUs?",
        "Evidence",
        "Attainment over GPUs",
        "within a latency",
        "Busy share of each GPU",
        "2 GPUs meet the objectives of all 2 functions",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    for outside in ["http://", "https://", "<script", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn a_generated_workload_is_run_and_written() {
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
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("requests written to out.csv"), "{printed}");
    folder.write("functions.toml", FUNCTIONS);
    let output = folder
        .command(&["--trace", "out.csv", "--json"])
        .output()
        .unwrap();
    let whole: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(whole["runs"][0]["functions"].as_array().unwrap().len(), 3);
}

#[test]
fn the_examples_of_the_documentation_are_correct() {
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
fn every_key_can_be_swept_and_is_answered() {
    let folder = Folder::new();
    // Two models of which one fits into 1 GB, and 40 requests a second of 30 ms.
    folder.write(
        "functions.toml",
        &FUNCTIONS.replace("weights_mb = 200", "weights_mb = 600"),
    );
    for (sweep, fixed, value, which) in [
        ("gpus=1..3", "1", Some(2.0), "the fewest of 1 to 3"),
        ("nodes=1..3", "1", Some(2.0), "the fewest of 1 to 3"),
        (
            "rate-scale=0.25..1.25..0.25",
            "1",
            Some(0.75),
            "the highest of 0.25 to 1.25",
        ),
        ("models-gb=1,2,20", "0.5", Some(2.0), "the least of 1 to 20"),
        (
            "host-gb-per-s=10,20",
            "0.5",
            Some(10.0),
            "the least of 10 to 20",
        ),
        ("gpus=1..2", "5", None, "none of 1 to 2 (GPUs a node)"),
    ] {
        let whole = folder.json(&["--sweep", sweep, "--rate-scale", fixed, "--seeds=3"]);
        let answer = &whole["answer"][0];
        let printed = answer["sentence"].as_str().unwrap();
        assert_eq!(answer["value"].as_f64(), value, "{sweep}: {printed}");
        assert_eq!(answer["holds"], value.is_some(), "{sweep}: {printed}");
        assert!(printed.contains(which), "{sweep}: {printed}");
        assert_eq!(whole["swept"], sweep.split('=').next().unwrap());
    }
}

#[test]
fn each_rule_has_its_answer() {
    let folder = Folder::new();
    let arguments = [
        "--rule",
        "adaptive,early-binding",
        "--sweep",
        "gpus=1..2",
        "--seeds=2",
    ];
    let whole = folder.json(&arguments);
    let answers = whole["answer"].as_array().unwrap();
    let rules: Vec<_> = answers
        .iter()
        .map(|own| own["rule"].as_str().unwrap())
        .collect();
    assert_eq!(rules, ["adaptive", "early-binding"]);
    for own in answers {
        let rule = own["rule"].as_str().unwrap();
        assert!(
            own["sentence"]
                .as_str()
                .unwrap()
                .starts_with(&format!("{rule}: "))
        );
    }
    assert_eq!(whole["runs"].as_array().unwrap().len(), 4);
}

/// Collects all keys of a JSON value, recursively.
fn keys(of: &Value, all: &mut Vec<String>) {
    match of {
        Value::Object(map) => {
            for (key, value) in map {
                all.push(key.clone());
                keys(value, all);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| keys(value, all)),
        _ => {}
    }
}

#[test]
fn every_key_of_the_json_is_documented() {
    let text = fs::read_to_string(docs("../simulate.md")).unwrap();
    let mut all = Vec::new();
    keys(&Folder::new().json(&["--seeds=2"]), &mut all);
    all.sort();
    all.dedup();
    assert!(all.len() > 40, "{all:?}");
    for key in all {
        let printed = [
            format!("`{key}`"),
            format!("`{key}[]`"),
            format!("\"{key}\""),
        ];
        assert!(
            printed.iter().any(|printed| text.contains(printed)),
            "{key}"
        );
    }
}

#[test]
fn results_of_few_requests_carry_a_note() {
    let folder = Folder::new();
    folder.write("trace.csv", "arrival_s,function\n0.5,a\n1.5,a\n9.5,a\n");
    let whole = folder.json(&[]);
    let notes = whole["runs"][0]["notes"].to_string();
    assert!(notes.contains("Too few requests of 1 function"), "{notes}");
    let notes = Folder::new().json(&[])["runs"][0]["notes"].to_string();
    assert_eq!(notes, "[]");
}
