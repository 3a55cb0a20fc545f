//! Verdicts follow the rule that was fixed beforehand, and nothing else.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use experiments::claims::{Claim, Claims, Evidence, JudgeError, Row, Run, Verdict};

fn claim(id: &str) -> Claim {
    Claims::of_papers().get(id).unwrap().clone()
}

fn run(parameters: &[(&str, &str)], values: &[f64]) -> Run {
    let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    Run {
        parameters: parameters.iter().map(owned).collect(),
        by_seed: (20_250_707..).zip(values.iter().copied()).collect(),
    }
}

fn judge(id: &str, values: &[f64]) -> Row {
    let evidence = Evidence {
        run: run(&[], values),
        other: None,
    };
    claim(id).judge(&evidence).unwrap()
}

fn around(mean: f64, half: f64) -> Vec<f64> {
    (0..10)
        .map(|n| mean + if n % 2 == 0 { half } else { -half })
        .collect()
}

#[test]
fn a_value_is_reproduced_when_the_interval_overlaps_the_band() {
    // 480 ± 10 % is 432 to 528. Ten values ± h have an interval of ± 0.754 h.
    for (mean, half, verdict) in [
        (480.0, 0.0, Verdict::Reproduced),
        (432.0, 0.0, Verdict::Reproduced),
        (431.0, 0.0, Verdict::Missed),
        (425.0, 10.0, Verdict::Reproduced),
        (425.0, 9.0, Verdict::Missed),
        (535.0, 10.0, Verdict::Reproduced),
        (535.0, 9.0, Verdict::Missed),
    ] {
        let row = judge("T01", &around(mean, half));
        assert_eq!(row.verdict, verdict, "{mean} {half}: {}", row.why);
    }
    let wide = judge("T01", &around(480.0, 400.0));
    assert!(wide.why.contains("wider"), "{}", wide.why);
}

#[test]
fn a_bound_holds_at_the_worse_end() {
    assert_eq!(
        judge("T02", &around(83.0, 3.0)).verdict,
        Verdict::Reproduced
    );
    assert_eq!(judge("T02", &around(82.0, 3.0)).verdict, Verdict::Missed);
    assert_eq!(
        judge("T09", &around(47.0, 3.0)).verdict,
        Verdict::Reproduced
    );
    let late = judge("T09", &around(48.0, 3.0));
    assert_eq!(late.verdict, Verdict::Missed);
    assert_eq!(late.why, "the worse end, 50.3 ms, is not ≤ 50 ms");
}

#[test]
fn one_seed_has_no_interval_and_reproduces_nothing() {
    for id in ["T01", "T02"] {
        let row = judge(id, &[480.0]);
        assert_eq!((row.verdict, row.low), (Verdict::Missed, None), "{id}");
    }
}

#[test]
fn an_order_holds_in_nine_of_ten_seeds_and_needs_ten() {
    let mut values = vec![-1.0; 10];
    assert_eq!(judge("T11", &values).verdict, Verdict::Reproduced);
    // Equal is not less.
    values[3] = 0.0;
    assert_eq!(judge("T11", &values).verdict, Verdict::Reproduced);
    values[4] = 1.0;
    let row = judge("T11", &values);
    assert_eq!(row.verdict, Verdict::Missed);
    assert_eq!(row.why, "holds in 8 of 10 seeds");
    assert_eq!(judge("T11", &[-1.0; 9]).verdict, Verdict::Missed);
    assert_eq!(judge("T07", &[1.0; 10]).verdict, Verdict::Reproduced);
    assert_eq!(judge("T07", &[2.0; 10]).verdict, Verdict::Missed);
}

#[test]
fn structural_claims_are_exact_and_never_in_the_headline() {
    assert_eq!(judge("S10", &[9_282.0]).verdict, Verdict::StructuralOk);
    assert_eq!(judge("S10", &[9_283.0]).verdict, Verdict::StructuralWrong);
    assert_eq!(
        judge("T04", &[72.0, 72.0, 71.0]).verdict,
        Verdict::StructuralWrong
    );
    assert_eq!(judge("T25", &[432.0]).verdict, Verdict::StructuralOk);
    assert_eq!(judge("T25", &[501.0]).verdict, Verdict::StructuralWrong);
    // Structural claims are never explained.
    let evidence = Evidence {
        run: run(&[("order", "arrival")], &[2.0]),
        other: Some(run(&[("order", "area")], &[1.0])),
    };
    let row = claim("S06").judge(&evidence).unwrap();
    assert_eq!(row.verdict, Verdict::StructuralWrong);

    let mut all = BTreeMap::new();
    all.insert(
        "S10".to_owned(),
        Evidence {
            run: run(&[], &[9_282.0]),
            other: None,
        },
    );
    all.insert(
        "T01".to_owned(),
        Evidence {
            run: run(&[], &[300.0; 10]),
            other: None,
        },
    );
    let judged = Claims::of_papers().judge(&all).unwrap();
    let headline = judged.headline();
    assert_eq!((headline.reproduced, headline.missed), (0, 1));
    assert_eq!((headline.structural_ok, headline.not_run), (1, 22));
    assert!(headline.sentence().starts_with("0 of 1 claims reproduced"));
}

#[test]
fn one_changed_parameter_under_the_same_seeds_explains() {
    let ours = run(&[("link", "9.46"), ("contention", "0.6")], &[400.0; 10]);
    let verdict = |other: Run| {
        let evidence = Evidence {
            run: ours.clone(),
            other: Some(other),
        };
        claim("T01").judge(&evidence).unwrap()
    };
    let row = verdict(run(&[("link", "9.46"), ("contention", "0")], &[470.0; 10]));
    assert_eq!(row.verdict, Verdict::Explained, "{}", row.why);
    assert_eq!(
        row.why,
        "the interval ends below 432 to 528 functions; with contention at 0 instead of 0.6 it is 470 functions: \
         the interval meets 432 to 528 functions"
    );
    // The reported figures are those of the setting that was fixed beforehand.
    assert_eq!(row.ours, 400.0);
    let added = run(
        &[("link", "9.46"), ("contention", "0.6"), ("noise", "0")],
        &[470.0; 10],
    );
    assert_eq!(verdict(added).verdict, Verdict::Explained);

    for (other, what) in [
        (
            run(&[("link", "12"), ("contention", "0")], &[470.0; 10]),
            "2 parameters",
        ),
        (
            run(&[("link", "9.46"), ("contention", "0.6")], &[470.0; 10]),
            "0 parameters",
        ),
        (
            run(&[("link", "12"), ("contention", "0.6")], &[420.0; 10]),
            "ends below",
        ),
        (
            run(&[("link", "12"), ("contention", "0.6")], &[470.0; 9]),
            "other seeds",
        ),
    ] {
        let row = verdict(other);
        assert_eq!(row.verdict, Verdict::Missed, "{}", row.why);
        assert!(row.why.contains(what), "{}", row.why);
    }
}

#[test]
fn an_explanation_does_not_affect_a_reproduced_claim() {
    let evidence = Evidence {
        run: run(&[("link", "1")], &[480.0; 10]),
        other: Some(run(&[("link", "2")], &[1.0; 10])),
    };
    let row = claim("T01").judge(&evidence).unwrap();
    assert_eq!(row.verdict, Verdict::Reproduced);
}

#[test]
fn invalid_evidence_is_refused() {
    let bad = |values: &[f64]| {
        let evidence = Evidence {
            run: run(&[], values),
            other: None,
        };
        claim("T01").judge(&evidence).unwrap_err()
    };
    assert_eq!(bad(&[]), JudgeError::NoSeeds("T01".to_owned()));
    let nan = JudgeError::NotFinite {
        id: "T01".to_owned(),
        seed: 20_250_708,
    };
    assert_eq!(bad(&[1.0, f64::NAN]), nan);
    let mut unknown = BTreeMap::new();
    unknown.insert("T99".to_owned(), Evidence::default());
    assert_eq!(
        Claims::of_papers().judge(&unknown),
        Err(JudgeError::Unknown("T99".to_owned()))
    );
}

#[test]
fn the_table_and_the_json_rows_agree() {
    let mut all = BTreeMap::new();
    for (id, values) in [("T02", around(89.0, 1.0)), ("T07", vec![1.0; 10])] {
        all.insert(
            id.to_owned(),
            Evidence {
                run: run(&[], &values),
                other: None,
            },
        );
    }
    let judged = Claims::of_papers().judge(&all).unwrap();
    let table = judged.table();
    for text in [
        "T02",
        "≥ 80.0 %",
        "88.2 to 89.8 %",
        "reproduced",
        "2 of 2 claims",
    ] {
        assert!(table.contains(text), "{text} in\n{table}");
    }
    let rows = judged.json_rows().unwrap();
    let row: serde_json::Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    assert_eq!(row["id"], "T02");
    assert_eq!(row["rule"], "bound");
    assert_eq!(row["verdict"], "reproduced");
    assert_eq!(row["ours"], 89.0);
    assert_eq!(row["held"]["of"], 10);
    assert_eq!(rows.lines().count(), 2);
}
