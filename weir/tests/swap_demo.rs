//! Tests of `weir demo --scenario swap` as a user runs it: its output and its errors.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// Held by a demo that runs: all of them have the same addresses.
static DEMO: Mutex<()> = Mutex::new(());

fn run(arguments: &[&str]) -> Output {
    let _alone = DEMO.lock().unwrap_or_else(PoisonError::into_inner);
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["demo", "--scenario", "swap"])
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn every_request_is_answered_rightly_while_models_take_turns() {
    let output = run(&[
        "--json",
        "--functions",
        "8",
        "--gpus",
        "1",
        "--rate",
        "6",
        "--seconds",
        "5",
        "--models",
        "1500MiB",
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).expect(&stderr);
    assert_eq!(report["scenario"], "swap");
    let [stock, weir] = &report["runs"].as_array().unwrap()[..] else {
        panic!("{report}");
    };
    assert_eq!(
        (&stock["name"], &weir["name"]),
        (&"stock".into(), &"weir".into())
    );
    assert_eq!(weir["requests"], 30);
    assert_eq!(
        (&weir["answered"], &weir["right"]),
        (&weir["requests"], &weir["requests"]),
        "{weir}"
    );
    assert_eq!(
        weir["overlaps"], 0,
        "one process computes at a time: {weir}"
    );
    // The largest model leaves no room for the others.
    assert!(weir["swapped_share"].as_f64().unwrap() > 0.2, "{weir}");
    let evictions = weir["evictions"].as_object().unwrap();
    assert!(
        evictions.values().any(|count| count.as_u64() > Some(0)),
        "{weir}"
    );
    // One GPU hosts all eight as stock, so that the result says nothing.
    assert_eq!(report["valid"], false);
    assert!(report["why"].as_str().unwrap().contains("stock hosts more"));
    assert_eq!(output.status.code(), Some(1), "{stderr}");
}

#[test]
fn requests_go_to_the_instance_whose_slot_serves_them_sooner() {
    let output = run(&[
        "--json",
        "--functions",
        "16",
        "--gpus",
        "2",
        "--rate",
        "16",
        "--seconds",
        "5",
        "--models",
        "2GiB",
        "--slow",
        "2",
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).expect(&stderr);
    assert_eq!(
        (
            &report["instances"],
            &report["rate"],
            &report["scale"]["time"]
        ),
        (&2.into(), &16.into(), &2.into())
    );
    let weir = &report["runs"][1];
    assert_eq!(
        (&weir["answered"], &weir["right"], &weir["overlaps"]),
        (&80.into(), &80.into(), &0.into()),
        "{weir}"
    );
    assert!(weir["siblings"]["sent"].as_u64().unwrap() > 0, "{weir}");
    // Reported times are those before: of ResNet-50 9 ms.
    let models = weir["models"].as_array().unwrap();
    let resnet = models.iter().find(|model| model["name"] == "resnet-50");
    let resnet = resnet.unwrap();
    assert_eq!(resnet["objective_ms"], 80);
    let ms = resnet["resident_ms"].as_f64();
    assert!(ms.is_none_or(|ms| (8.0..17.0).contains(&ms)), "{resnet}");
}

#[test]
fn impossible_options_are_refused_with_exit_code_2() {
    for (arguments, why) in [
        (&["--models", "1GiB"][..], "room for the largest model"),
        (&["--models", "much"], "a size such as 4GiB"),
        (
            &["--gpus", "1", "--instances", "2"],
            "up to the number of GPUs",
        ),
        (&["--load", "1"], "--load belongs to --scenario deadline"),
        (&["--functions", "0"], "from 1 to 256"),
    ] {
        let output = run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(why), "{arguments:?}: {stderr}");
    }
}
