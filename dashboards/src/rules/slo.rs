//! Alerts of objectives: multi-window, multi-burn-rate (Google's SRE workbook, chapter 5), per function, with objective
//! and percentile read from the series.

use super::{Alert, Case, Severity};

/// Smallest number of judged requests in the long window; of fewer, one miss is too large a share.
const JUDGED_MIN: u32 = 100;
/// Smallest number of judged requests in six hours of a function that is called seldom.
const SELDOM_MIN: u32 = 5;

const MISSED: &str = "namespace_function:weir_requests_missed:increase";
const JUDGED: &str = "namespace_function:weir_requests_judged:increase";
const FUNCTION: [(&str, &str); 2] = [("namespace", "default"), ("function", "f")];

fn burn(long: &str, short: &str, threshold: &str) -> String {
    let of = |window: &str| {
        format!(
            "{MISSED}{window} / {JUDGED}{window} > on (namespace, function) namespace_function:weir_slo_threshold:{threshold}"
        )
    };
    format!(
        "({}) and on (namespace, function) ({}) and on (namespace, function) ({JUDGED}{long} >= {JUDGED_MIN})",
        of(long),
        of(short)
    )
}

/// Returns series of the objective, and of requests in time and missed per step of the test, for `steps` steps.
fn at(percentile: &str, in_time: u32, missed: u32, steps: u32) -> Vec<(String, String)> {
    let labels = "namespace=\"default\",function=\"f\",revision=\"f-1\"";
    vec![
        (
            format!("weir_slo_objective_ratio{{{labels},pod=\"a\"}}"),
            format!("{percentile}+0x{steps}"),
        ),
        (
            format!("weir_requests_in_time_total{{{labels},pod=\"a\"}}"),
            format!("0+{in_time}x{steps}"),
        ),
        (
            format!("weir_requests_missed_total{{{labels},pod=\"a\",reason=\"queue\"}}"),
            format!("0+{missed}x{steps}"),
        ),
    ]
}

fn case(name: impl Into<String>, at: &'static str, series: Vec<(String, String)>) -> Case {
    Case {
        series,
        ..Case::new(name, at, &[])
    }
}

fn named(mut series: Vec<(String, String)>, from: &str, to: &str) -> Vec<(String, String)> {
    for (name, _) in &mut series {
        *name = name.replace(from, to);
    }
    series
}

fn valued(mut series: Vec<(String, String)>, index: usize, values: &str) -> Vec<(String, String)> {
    values.clone_into(&mut series[index].1);
    series
}

/// Returns two cases for each percentile: one that fires, and one that is silent just below.
fn pairs(
    when: &'static str,
    steps: u32,
    text: &str,
    cases: [(&str, [u32; 2], &str, [u32; 2]); 4],
) -> Vec<Case> {
    let mut all = Vec::new();
    for (percentile, above, ratio, below) in cases {
        let fires = case(
            format!("fires at percentile {percentile}"),
            when,
            at(percentile, above[0], above[1], steps),
        );
        all.push(fires.fires(&FUNCTION, text.replace("RATIO", ratio)));
        all.push(case(
            format!("is silent just below at percentile {percentile}"),
            when,
            at(percentile, below[0], below[1], steps),
        ));
    }
    all
}

/// Returns further cases of the alert with the shortest windows, which represents the others.
fn fast_cases(text: &str) -> Vec<Case> {
    let fires = |name: &str, series: Vec<(String, String)>, ratio: &str| {
        case(name, "70m", series).fires(&FUNCTION, text.replace("RATIO", ratio))
    };
    let half = at("0.98", 5, 5, 70);
    // Pod b starts when pod a ends.
    let mut relay = valued(valued(half.clone(), 1, "0+5x35 stale"), 2, "0+5x35 stale");
    let later = named(half.clone(), "pod=\"a\"", "pod=\"b\"");
    relay.extend(valued(valued(later, 1, "_x35 0+5x35"), 2, "_x35 0+5x35"));
    let attached = |in_time: u32, missed: u32| {
        named(
            at("0.98", in_time, missed, 70),
            "weir_requests",
            "weir_function_requests",
        )
    };
    let mut clients_see_none = half.clone();
    clients_see_none.extend(attached(10, 0));
    let mut clients_see_half = at("0.98", 10, 0, 70);
    clients_see_half.extend(attached(5, 5));
    // Until a quarter of an hour ago activator-ext was in the path, and no request missed.
    let mut detached = valued(
        valued(half.clone(), 1, "0+10x55 550+0x20"),
        2,
        "0+0x55 0+20x20",
    );
    detached.extend(valued(
        valued(attached(10, 0), 1, "0+10x55 550+0x20"),
        2,
        "0+0x80",
    ));
    let mut not_in_path = half.clone();
    not_in_path.extend(attached(0, 0));
    vec![
        fires(
            "fires at three requests a minute",
            at("0.98", 2, 1, 70),
            "33.33%",
        ),
        case("is silent below 100 requests", "70m", at("0.98", 0, 1, 70)),
        fires("fires from 100 requests on", at("0.98", 1, 1, 70), "50%"),
        fires(
            "fires over a restart of the pod",
            valued(valued(half.clone(), 1, "0+5x30 0+5x39"), 2, "0+5x30 0+5x39"),
            "50%",
        ),
        fires("fires over pods that come and go", relay, "50%"),
        case(
            "is silent once it is over",
            "70m",
            valued(half, 2, "0+5x60 300+0x10"),
        ),
        case(
            "takes activator-ext's account where it is in the path: silent",
            "70m",
            clients_see_none,
        ),
        fires(
            "takes activator-ext's account where it is in the path: fires",
            clients_see_half,
            "50%",
        ),
        fires("fires after it has been detached", detached, "38.36%"),
        fires(
            "takes the pods' account where activator-ext is not in the path",
            not_in_path,
            "50%",
        ),
    ]
}

/// Returns the alerts of objectives.
pub(super) fn alerts() -> Vec<Alert> {
    let alert = |name, expr, hold, severity, summary: &'static str, cases| Alert {
        name,
        expr,
        hold,
        severity,
        summary,
        cases,
        fires_without_data: false,
    };
    let text = |window: &str| {
        format!("default/f: RATIO of the requests of {window} missed their objective.")
    };
    let mut fast = pairs(
        "70m",
        70,
        &text("the last hour"),
        [
            ("0.5", [24, 76], "76%", [26, 74]),
            ("0.9", [44, 56], "56%", [46, 54]),
            ("0.98", [71, 29], "29%", [72, 28]),
            ("0.999", [985, 15], "1.5%", [986, 14]),
        ],
    );
    fast.extend(fast_cases(&text("the last hour")));
    let mut medium = pairs(
        "400m",
        90,
        &text("the last six hours"),
        [
            ("0.5", [24, 76], "76%", [26, 74]),
            ("0.9", [44, 56], "56%", [46, 54]),
            ("0.98", [87, 13], "13%", [89, 11]),
            ("0.999", [993, 7], "0.7%", [995, 5]),
        ],
    );
    let few = |name: &str, when, series, window: &str, ratio: &str| {
        let own = case(name, when, series);
        if ratio.is_empty() {
            return own;
        }
        own.fires(&FUNCTION, text(window).replace("RATIO", ratio))
    };
    let (below, from) = ("is silent below 100 requests", "fires from 100 requests on");
    medium.push(few(below, "400m", at("0.98", 0, 1, 90), "", ""));
    medium.push(few(
        from,
        "400m",
        at("0.98", 1, 1, 90),
        "the last six hours",
        "50%",
    ));
    let mut slow = pairs(
        "30h",
        70,
        &text("the last day"),
        [
            ("0.5", [24, 76], "76%", [26, 74]),
            ("0.9", [69, 31], "31%", [71, 29]),
            ("0.98", [93, 7], "7%", [95, 5]),
            ("0.999", [996, 4], "0.4%", [998, 2]),
        ],
    );
    slow.push(few(below, "30h", at("0.98", 0, 2, 70), "", ""));
    slow.push(few(
        from,
        "30h",
        at("0.98", 1, 2, 70),
        "the last day",
        "66.67%",
    ));
    let mut spent = pairs(
        "80h",
        170,
        &text("the last three days"),
        [
            ("0.5", [49, 51], "51%", [51, 49]),
            ("0.9", [89, 11], "11%", [91, 9]),
            ("0.98", [97, 3], "3%", [981, 19]),
            ("0.999", [9_989, 11], "0.11%", [9_991, 9]),
        ],
    );
    let once = valued(at("0.98", 0, 0, 170), 2, "0+0x90 1+1x79");
    spent.push(few(below, "80h", once, "", ""));
    spent.push(few(
        from,
        "80h",
        at("0.98", 0, 1, 170),
        "the last three days",
        "100%",
    ));
    spent.push(case(
        "is silent once it is over",
        "80h",
        valued(at("0.98", 50, 50, 170), 2, "0+50x145 7250+0x25"),
    ));
    vec![
        alert(
            "WeirObjectiveBurnsFast",
            burn("1h", "5m", "burn14d4"),
            "2m",
            Severity::Page,
            "{{ $labels.namespace }}/{{ $labels.function }}: {{ $value | humanizePercentage }} of the requests of the last hour missed their objective.",
            fast,
        ),
        alert(
            "WeirObjectiveBurns",
            burn("6h", "30m", "burn6"),
            "5m",
            Severity::Page,
            "{{ $labels.namespace }}/{{ $labels.function }}: {{ $value | humanizePercentage }} of the requests of the last six hours missed their objective.",
            medium,
        ),
        alert(
            "WeirObjectiveBurnsSlowly",
            burn("1d", "2h", "burn3"),
            "15m",
            Severity::Ticket,
            "{{ $labels.namespace }}/{{ $labels.function }}: {{ $value | humanizePercentage }} of the requests of the last day missed their objective.",
            slow,
        ),
        alert(
            "WeirObjectiveBudgetSpent",
            burn("3d", "6h", "burn1"),
            "30m",
            Severity::Ticket,
            "{{ $labels.namespace }}/{{ $labels.function }}: {{ $value | humanizePercentage }} of the requests of the last three days missed their objective.",
            spent,
        ),
        alert(
            "WeirObjectiveMissedByFewRequests",
            format!(
                "({MISSED}6h / {JUDGED}6h > 0.5) and on (namespace, function) ({JUDGED}6h >= {SELDOM_MIN}) and on (namespace, function) ({JUDGED}6h < {JUDGED_MIN})"
            ),
            "15m",
            Severity::Ticket,
            "{{ $labels.namespace }}/{{ $labels.function }}, which is called seldom: {{ $value | humanizePercentage }} of the requests of the last six hours missed their objective.",
            seldom_cases(),
        ),
    ]
}

fn seldom_cases() -> Vec<Case> {
    let of = |name: &str, in_time: &str, missed: &str| {
        let series = valued(valued(at("0.98", 0, 0, 90), 1, in_time), 2, missed);
        case(name, "400m", series)
    };
    let text = "default/f, which is called seldom: RATIO of the requests of the last six hours missed their objective.";
    vec![
        of("fires at three of five", "0+0x20 2+0x69", "0+0x20 3+0x69")
            .fires(&FUNCTION, text.replace("RATIO", "60%")),
        of("fires at most of 99", "0+0x20 40+0x69", "0+0x20 59+0x69")
            .fires(&FUNCTION, text.replace("RATIO", "59.6%")),
        of(
            "is silent at one miss in the night",
            "0+0x90",
            "0+0x20 1+0x69",
        ),
        of("is silent at four of four", "0+0x90", "0+0x20 4+0x69"),
        of(
            "is silent at three of six",
            "0+0x20 3+0x69",
            "0+0x20 3+0x69",
        ),
        of(
            "leaves it to the others from 100 on",
            "0+0x20 40+0x69",
            "0+0x20 60+0x69",
        ),
    ]
}
