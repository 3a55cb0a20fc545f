//! Errors in files and options are reported with file, line and key, and with the allowed values: exit code 2, and nothing is
//! written.

use std::fs;
use std::process::Command;

use super::folder::{CLUSTER, FUNCTIONS, Folder, refusal};

/// Applies each change to a file, and asserts its error message.
fn check_errors(file: &str, text: &str, changes: &[(&str, &str, &str)]) {
    let folder = Folder::new();
    for (from, to, expected) in changes {
        assert!(text.contains(from), "{from}");
        folder.write(file, &text.replacen(from, to, 1));
        let output = folder.run(&["--html", "page.html"]);
        let stderr = refusal(&output);
        assert!(
            stderr.contains(file) && stderr.contains(expected),
            "{to}: {stderr}"
        );
        assert!(fs::metadata(folder.path("page.html")).is_err(), "{to}");
    }
}

#[test]
fn errors_in_a_cluster_name_line_and_key() {
    let number = "a number above 0 and below 1e12 is needed";
    check_errors(
        "cluster.toml",
        CLUSTER,
        &[
            (
                "gpus = 1",
                "gpus = 0",
                "line 3: node.gpus is 0: a whole number from 1 to 64",
            ),
            ("gpus = 1", "gpus = -4", "line 3: node.gpus is -4"),
            ("gpus = 1", "gpus = 65", "line 3: node.gpus is 65"),
            ("gpus = 1", "gpus = 1.5", "line 3: node.gpus: invalid type"),
            (
                "gpus = 1",
                "gpus = \"one\"",
                "line 3: node.gpus: invalid type",
            ),
            (
                "gpus = 1",
                "gpus = 99999999999999999999",
                "line 3: node.gpus",
            ),
            ("gpus = 1", "gpu = 1", "line 3: unknown field `gpu`"),
            ("gpus = 1", "gpu = 1", "did you mean `gpus`?"),
            ("gpus = 1\n", "", "line 2: node.gpus is missing"),
            ("[link]", "[lnk]", "did you mean `link`?"),
            ("gpus = 1", "gpus = 1\ngpus = 2", "line 4"),
            ("gpus = 1", "gpus =", "line 3"),
            (
                "models_gb = 20",
                "models_gb = 0",
                &format!("line 4: node.models_gb is 0: {number}"),
            ),
            (
                "models_gb = 20",
                "models_gb = -1",
                &format!("node.models_gb is -1: {number}"),
            ),
            (
                "models_gb = 20",
                "models_gb = nan",
                "line 4: node.models_gb is NaN",
            ),
            (
                "models_gb = 20",
                "models_gb = inf",
                "line 4: node.models_gb is inf",
            ),
            (
                "models_gb = 20",
                "models_gb = 1e300",
                &format!(": {number}"),
            ),
            (
                "host_gb_per_s = 10",
                "host_gb_per_s = 0.0",
                "line 7: link.host_gb_per_s is 0",
            ),
            (
                "price_per_gpu_hour = 2.0",
                "price_per_gpu_hour = -2",
                "line 1: price_per_gpu_hour is -2",
            ),
        ],
    );
}

#[test]
fn errors_in_functions_name_line_and_key() {
    check_errors(
        "functions.toml",
        FUNCTIONS,
        &[
            (
                "execution_ms = 30",
                "execution_m = 30",
                "line 6: unknown field `execution_m`",
            ),
            (
                "execution_ms = 30",
                "execution_m = 30",
                "did you mean `execution_ms`?",
            ),
            (
                "execution_ms = 30",
                "execution_ms = 0",
                "line 6: model.execution_ms is 0: a number above 0",
            ),
            (
                "execution_ms = 30",
                "execution_ms = 1e13",
                "line 6: model.execution_ms is 10000000000000",
            ),
            (
                "execution_ms = 30",
                "execution_ms = [30]",
                "line 6: model.execution_ms: invalid type",
            ),
            (
                "execution_ms = 30",
                "",
                "functions.toml: function \"even\": its execution is not known",
            ),
            (
                "objective_ms = 100",
                "",
                "functions.toml: function \"even\": it has no objective",
            ),
            (
                "objective_ms = 100",
                "objective_ms = -100",
                "line 2: default.objective_ms is -100",
            ),
            (
                "objective_ms = 100",
                "objective_ms = 100\npercentile = 100",
                "line 3: default.percentile is 100: a percentile from 50 to 99.9",
            ),
            (
                "objective_ms = 100",
                "objective_ms = 100\nwork = \"tracing\"",
                "line 3: default.work is \"tracing\": \"stated\", \"trace\" or \"trace-relative\"",
            ),
            (
                "objective_ms = 100",
                "objective_ms = 100\nwork = \"trace\"",
                "function \"even\": its work is \"trace\", but the trace has neither",
            ),
            (
                "objective_ms = 100",
                "objective_ms = 100\nmodel = \"n\"",
                "line 3: default.model is \"n\": one of m",
            ),
            ("weights_mb = 200", "", "missing field `weights_mb`"),
            ("[[model]]", "[[mdel]]", "did you mean `model`?"),
            (
                "[default]",
                "[[function]]\nname = \"*\"\nleave_out = true\n[default]",
                "every function with requests is excluded by leave_out",
            ),
        ],
    );
    let folder = Folder::new();
    folder.write(
        "functions.toml",
        "[default]\nobjective_ms = 10\nexecution_ms = 3\n",
    );
    let stderr = refusal(&folder.run(&[]));
    assert!(
        stderr.contains("functions.toml: function \"even\": its weights are not known"),
        "{stderr}"
    );
}

#[test]
fn errors_in_a_trace_name_the_line() {
    let folder = Folder::new();
    for (text, expected) in [
        (
            "arrival_s,function\n0.5,a\nsoon,a\n",
            "line 3: arrival_s is \"soon\"",
        ),
        ("arrival_s,function\n0.5,a\n-1,a\n", "line 3"),
        ("arrival_s,function\n0.5,a\nnan,a\n", "line 3"),
        ("arrival_s,function\n0.5,a\n1e99,a\n", "line 3"),
        ("arrival_s,function\n0.5,a\n0.25,a\n", "line 3"),
        ("arrival_s,function\n0.5,a\n0.75\n", "line 3"),
        ("arrival_s,function\n0.5,a\n0.75,\n", "line 3"),
        (
            "arrival_s,function,service_ms\n0.5,a,-1\n",
            "line 2: service_ms",
        ),
        ("when,who\n0.5,a\n", "the heading is of no known format"),
        ("arrival_s,function\n", "there are no rows"),
        ("", "the file is empty"),
    ] {
        folder.write("trace.csv", text);
        let stderr = refusal(&folder.run(&[]));
        assert!(
            stderr.contains("trace.csv") && stderr.contains(expected),
            "{text}: {stderr}"
        );
    }
}

#[test]
fn unusable_files_are_named() {
    let folder = Folder::new();
    let stderr = refusal(&folder.command(&["--trace", "none.csv"]).output().unwrap());
    assert!(
        stderr.contains("none.csv") && stderr.contains("cannot be read"),
        "{stderr}"
    );
    for missing in ["cluster.toml", "functions.toml"] {
        let folder = Folder::new();
        fs::remove_file(folder.path(missing)).unwrap();
        let stderr = refusal(&folder.run(&[]));
        assert!(
            stderr.contains(&format!("{missing} cannot be read")),
            "{stderr}"
        );
        fs::write(folder.path(missing), [0xff, 0xfe]).unwrap();
        let stderr = refusal(&folder.run(&[]));
        assert!(
            stderr.contains(&format!("{missing} cannot be read")),
            "{stderr}"
        );
    }
    // Refused before the run, and with no file left behind.
    for page in [".", "no/folder/page.html"] {
        let stderr = refusal(&folder.run(&["--html", page]));
        assert!(
            stderr.contains(&format!("{page} cannot be written")),
            "{stderr}"
        );
        assert!(!stderr.contains(".tmp"), "{stderr}");
        let stderr = refusal(&folder.run(&["--write-trace", page]));
        assert!(
            stderr.contains(&format!("{page} cannot be written")),
            "{stderr}"
        );
    }
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .current_dir(folder.0.path())
        .args([
            "simulate",
            "experiment",
            "--all",
            "--html",
            "no/folder/page.html",
        ])
        .output()
        .unwrap();
    assert!(refusal(&output).contains("no/folder/page.html cannot be written"));
    let left: Vec<_> = fs::read_dir(folder.0.path()).unwrap().collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn an_existing_page_stays_until_the_new_one_is_complete() {
    let folder = Folder::new();
    folder.write("page.html", "before");
    folder.write("trace.csv", "arrival_s,function\n0.5,a\nsoon,a\n");
    refusal(&folder.run(&["--html", "page.html"]));
    assert_eq!(
        fs::read_to_string(folder.path("page.html")).unwrap(),
        "before"
    );
    folder.write("trace.csv", "arrival_s,function\n0.5,a\n1.5,a\n");
    assert!(folder.run(&["--html", "page.html"]).status.success());
    let page = fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(page.contains("How many GPUs?"), "{page}");
}

#[test]
fn settings_without_a_function_are_noted() {
    let folder = Folder::new();
    let more = format!("{FUNCTIONS}[[function]]\nname = \"evn\"\npercentile = 99\n");
    folder.write("functions.toml", &more);
    let text = String::from_utf8(folder.run(&["--seeds", "1"]).stdout).unwrap();
    assert!(
        text.contains("No function of the trace matches the name of [[function]] \"evn\"."),
        "{text}"
    );
}

#[test]
fn errors_in_options_state_the_allowed_values() {
    let folder = Folder::new();
    let stderr = refusal(&folder.command(&["--generate", "nothing"]).output().unwrap());
    assert!(
        stderr.contains("no preset \"nothing\"") && stderr.contains("torpor-node"),
        "{stderr}"
    );
    let stderr = refusal(&folder.command(&[]).output().unwrap());
    assert!(
        stderr.contains("--trace FILE or --generate NAME is needed"),
        "{stderr}"
    );
    let stderr = refusal(&folder.run(&["--from", "1000"]));
    assert!(
        stderr.contains("there is no request in the window"),
        "{stderr}"
    );
    for (arguments, expected) in [
        (
            ["--sweep", "gpus=0..4"],
            "gpus is 0: a whole number from 1 to 64",
        ),
        (["--sweep", "slots=1..4"], "gpus, nodes, models-gb"),
        (["--sweep", "gpus=4..1"], "as gpus=1..4"),
        (["--rule", "fastest"], "arrival-order"),
        (["--rate-scale", "0"], "a number from 0.001"),
        (["--rate-scale", "nan"], "a number from 0.001"),
        (["--seeds", "0"], "from 1 to 100"),
        (["--seeds", "101"], "from 1 to 100"),
        (["--seed", "one"], "--seed"),
        (["--seed", "0"], "from 1 to 1000000000"),
        (["--rate-scale", "-1"], "a number from 0.001"),
        (["--warm-up", "1"], "--warm-up"),
        (["--seconds", "0"], "--seconds"),
    ] {
        let output = folder.run(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    }
}

#[test]
fn all_missing_options_are_named_at_once() {
    let simulate = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        refusal(&command.arg("simulate").args(arguments).output().unwrap())
    };
    assert!(simulate(&[]).contains(
        "--cluster FILE, --functions FILE and --trace FILE or --generate NAME are needed"
    ),);
    assert!(simulate(&["--trace", "x"]).contains("--cluster FILE and --functions FILE are needed"));
    assert!(
        simulate(&["--functions", "x", "--trace", "x"]).contains("weir: --cluster FILE is needed")
    );
}

#[test]
fn options_that_a_trace_ignores_are_refused() {
    let folder = Folder::new();
    let llm = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,1,1\n";
    folder.write("llm.csv", llm);
    for (arguments, expected) in [
        (
            &["--trace", "llm.csv", "--durations", "x"][..],
            "--durations belongs to an Azure Functions 2019 trace: llm.csv is Azure LLM 2023",
        ),
        (
            &["--trace", "trace.csv", "--memory", "x"],
            "--memory belongs to an Azure Functions 2019 trace: trace.csv is Weir's CSV",
        ),
        (
            &["--trace", "trace.csv", "--placement", "even"],
            "--placement belongs to a trace of counts a minute",
        ),
    ] {
        let stderr = refusal(&folder.command(arguments).output().unwrap());
        assert!(stderr.contains(expected), "{stderr}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .current_dir(folder.0.path())
        .args([
            "simulate",
            "--trace",
            "trace.csv",
            "--write-trace",
            "out.csv",
            "--seconds",
            "5",
        ])
        .output()
        .unwrap();
    let stderr = refusal(&output);
    assert!(
        stderr.contains("--seconds is not used where --write-trace is all"),
        "{stderr}"
    );
    assert!(fs::metadata(folder.path("out.csv")).is_err());
}

#[test]
fn an_unknown_experiment_is_refused_with_the_list() {
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
