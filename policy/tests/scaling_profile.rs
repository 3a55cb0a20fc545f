//! Rows of a profile, the trials that produce them, and the shapes selected from them.

use policy::Span;
use policy::footprint::Footprint;
use policy::rectangles::FunctionId;
use policy::scaling::Rate;
use policy::scaling::profile::{
    Basis, DriverId, GpuModelId, Grid, GridError, ImageId, Latency, Objective, Origin, Plan,
    Points, Row, RowError, Rows, Subject, Trial, plan,
};
use policy::tokens::Share;

const GB: u64 = 1 << 30;
const SUBJECT: Subject = Subject {
    function: FunctionId(3),
    gpu: GpuModelId(1),
    driver: DriverId(1),
    batch: 1,
    image: ImageId(77),
};

fn row(sm_percent: u32, quota_percent: u32, throughput: u64, latency_ms: u64) -> Row {
    let latency = |percent: u64| Span::from_millis(latency_ms * percent / 100);
    Row {
        subject: SUBJECT,
        sm: sm_percent * 100,
        quota: Share::from_percent(quota_percent),
        throughput: Rate(throughput),
        latency: Latency {
            p50: latency(50),
            p95: latency(90),
            p98: latency(100),
            p99: latency(120),
        },
        memory: Footprint::unshared(GB),
        origin: Origin::Measured,
    }
}

/// Returns the row of a function whose throughput grows with SMs until 24 % and is proportional to quota.
fn measure(trial: Trial) -> Row {
    let full = u64::from(trial.sm.min(2_400)) * 50_000;
    let quota = u64::from(trial.quota.parts_per_million());
    Row {
        sm: trial.sm,
        quota: trial.quota,
        throughput: Rate(full * quota / 1_000_000),
        // A fifth slower than proportional, below the whole window.
        latency: Latency {
            p50: Span(10_000_000_000_000 / quota),
            p95: Span(if quota == 1_000_000 {
                20_000_000
            } else {
                24_000_000_000_000 / quota
            }),
            p98: Span(30_000_000_000_000 / quota),
            p99: Span(40_000_000_000_000 / quota),
        },
        ..row(1, 1, 1, 1)
    }
}

/// Runs the planned trials until a profile is complete. Returns all rows and the number of measured ones.
fn profile(grid: &Grid, measure: impl Fn(Trial) -> Row) -> (Vec<Row>, usize) {
    let mut rows = Vec::new();
    for _ in 0..4 {
        match plan(&rows, grid) {
            Plan::Measure(trials) => {
                assert!(!trials.is_empty());
                rows.extend(trials.into_iter().map(&measure));
            }
            Plan::Derive(derived) => {
                let measured = rows.len();
                rows.extend(derived);
                return (rows, measured);
            }
        }
    }
    panic!("a plan has at most three stages");
}

#[test]
fn where_throughput_is_proportional_to_quota_nine_trials_make_thirty_five_rows() {
    let (rows, measured) = profile(&Grid::default(), measure);
    assert_eq!((rows.len(), measured), (35, 9));
    for row in &rows {
        let truth = measure(Trial {
            sm: row.sm,
            quota: row.quota,
        });
        assert_eq!(row.throughput, truth.throughput);
        // Derived from the worst percentile of the tests: never too fast, and not slower than that.
        for per_mille in [500, 950, 980, 990] {
            let (derived, truth) = (row.latency.at(per_mille).0, truth.latency.at(per_mille).0);
            assert!(
                derived + 10 >= truth && derived <= truth * 121 / 100,
                "{derived} {truth}"
            );
        }
    }
    // A complete profile needs no further trials.
    assert_eq!(plan(&rows, &Grid::default()), {
        let derived = rows
            .iter()
            .copied()
            .filter(|row| row.origin == Origin::Derived);
        Plan::Derive(derived.collect())
    });
}

#[test]
fn where_throughput_is_not_proportional_all_shapes_are_measured() {
    let crooked = |trial: Trial| {
        let mut row = measure(trial);
        if !trial.quota.is_whole() {
            row.throughput = row.throughput.times(94, 100);
        }
        row
    };
    let (rows, measured) = profile(&Grid::default(), crooked);
    assert_eq!((rows.len(), measured), (35, 35));
    assert!(rows.iter().all(|row| row.origin == Origin::Measured));
    // Within 5 % it counts as proportional.
    let nearly = |trial: Trial| {
        let mut row = measure(trial);
        if !trial.quota.is_whole() {
            row.throughput = row.throughput.times(96, 100);
        }
        row
    };
    assert_eq!(profile(&Grid::default(), nearly).1, 9);
}

#[test]
fn small_grids_are_planned_and_bad_ones_refused() {
    let whole = vec![Share::WHOLE];
    let grid = Grid::new(whole.clone(), vec![1_000]).unwrap();
    assert_eq!(profile(&grid, measure).1, 2);
    let grid = Grid::new(whole.clone(), vec![1_000, 2_000]).unwrap();
    assert_eq!(profile(&grid, measure).1, 4);
    for (quotas, sms, error) in [
        (vec![], vec![100], GridError::Quotas),
        (
            vec![Share::NONE, Share::WHOLE],
            vec![100],
            GridError::Quotas,
        ),
        (vec![Share::from_percent(50)], vec![100], GridError::Quotas),
        (whole.clone(), vec![], GridError::Sms),
        (whole.clone(), vec![200, 100], GridError::Sms),
        (whole, vec![10_001], GridError::Sms),
    ] {
        assert_eq!(Grid::new(quotas, sms), Err(error));
    }
}

#[test]
fn rows_are_kept_by_subject_and_shape_and_expire_with_the_image() {
    let mut rows = Rows::new();
    let other_gpu = Subject {
        gpu: GpuModelId(2),
        ..SUBJECT
    };
    let next_image = Subject {
        image: ImageId(78),
        ..SUBJECT
    };
    rows.insert(row(24, 40, 20, 60)).unwrap();
    rows.insert(row(12, 40, 10, 60)).unwrap();
    for subject in [other_gpu, next_image] {
        rows.insert(Row {
            subject,
            ..row(50, 40, 30, 60)
        })
        .unwrap();
    }
    let shapes: Vec<_> = rows.of(&SUBJECT).iter().map(|row| row.sm).collect();
    assert_eq!(shapes, [1_200, 2_400]);
    // A measured row replaces any row, a derived one only a derived one.
    let derived = Row {
        origin: Origin::Derived,
        ..row(12, 40, 99, 60)
    };
    rows.insert(derived).unwrap();
    assert_eq!(rows.of(&SUBJECT)[0].throughput, Rate(10));
    rows.insert(row(12, 40, 11, 60)).unwrap();
    assert_eq!(rows.of(&SUBJECT)[0].throughput, Rate(11));
    rows.expire_other_images(FunctionId(9), ImageId(0));
    assert_eq!(rows.of(&SUBJECT).len(), 2);
    rows.expire_other_images(FunctionId(3), ImageId(78));
    assert!(rows.of(&SUBJECT).is_empty() && rows.of(&other_gpu).is_empty());
    assert_eq!(rows.of(&next_image).len(), 1);
}

#[test]
fn invalid_rows_are_refused() {
    let mut rows = Rows::new();
    let good = row(12, 40, 10, 60);
    let mut falling = good;
    falling.latency.p99 = Span::ZERO;
    for (bad, error) in [
        (Row { sm: 0, ..good }, RowError::Sm),
        (Row { sm: 10_001, ..good }, RowError::Sm),
        (
            Row {
                quota: Share::NONE,
                ..good
            },
            RowError::Quota,
        ),
        (
            Row {
                throughput: Rate::ZERO,
                ..good
            },
            RowError::Throughput,
        ),
        (falling, RowError::Latency),
    ] {
        assert_eq!(rows.insert(bad), Err(error));
    }
}

#[test]
fn points_meet_the_objective_at_its_percentile() {
    let rows = [
        row(12, 40, 100, 100),
        row(24, 40, 150, 60),
        row(50, 40, 200, 50),
    ];
    let of = |latency_ms, per_mille| {
        let objective = Objective {
            latency: Span::from_millis(latency_ms),
            per_mille,
        };
        let points = Points::select(&rows, Some(objective), GB).unwrap();
        let sms: Vec<_> = points.all().iter().map(|point| point.sm / 100).collect();
        (sms, points.basis())
    };
    // By throughput per area: 100/12, 150/24, 200/50.
    assert_eq!(of(100, 980), (vec![12, 24, 50], Basis::Meets));
    assert_eq!(of(99, 980), (vec![24, 50], Basis::Meets));
    // At p99 a fifth more is needed.
    assert_eq!(of(60, 980), (vec![24, 50], Basis::Meets));
    assert_eq!(of(60, 990), (vec![50], Basis::Meets));
    assert_eq!(of(60, 999), (vec![50], Basis::Meets));
    assert_eq!(of(50, 500), (vec![12, 24, 50], Basis::Meets));
    // No shape meets it: the fastest is chosen, with an alert.
    assert_eq!(of(10, 980), (vec![50], Basis::Fastest));
    assert_eq!(Points::select(&rows, None, GB).unwrap().all().len(), 3);
}

#[test]
fn points_fit_the_memory_of_a_gpu() {
    let mut rows = [row(12, 40, 100, 100), row(24, 40, 150, 60)];
    rows[0].memory = Footprint::shared(GB, GB);
    let points = Points::select(&rows, None, GB).unwrap();
    assert_eq!(points.all().len(), 1);
    assert!(Points::select(&rows, None, GB - 1).is_none());
    assert_eq!(Points::as_printed(&rows).unwrap().all().len(), 2);
    assert!(Points::as_printed(&[]).is_none());
}

/// Throughput is proportional to quota, so all quotas are equally efficient: the largest needs the fewest pods.
#[test]
fn of_equally_efficient_shapes_the_largest_quota_is_chosen() {
    let rows = [
        row(12, 20, 202, 60),
        row(12, 40, 400, 60),
        row(12, 80, 800, 60),
        row(24, 80, 1_590, 60),
        // Differences above two percent count.
        row(12, 100, 970, 60),
    ];
    let points = Points::select(&rows, None, GB).unwrap();
    assert_eq!(points.efficient().quota, Share::from_percent(80));
    assert_eq!(points.efficient().sm, 1_200);
    // As printed it is the shape of the largest ratio.
    let printed = Points::as_printed(&rows).unwrap();
    assert_eq!(printed.efficient().quota, Share::from_percent(20));
}

#[test]
fn the_ideal_point_serves_the_rest_with_the_least() {
    let rows = [
        row(12, 40, 400, 60),
        row(24, 20, 400, 60),
        row(6, 20, 150, 60),
        row(50, 40, 600, 60),
    ];
    let points = Points::select(&rows, None, GB).unwrap();
    let ideal = |rest| points.ideal(Rate(rest)).map(|point| point.throughput.0);
    assert_eq!(ideal(150), Some(150));
    assert_eq!(ideal(151), Some(400));
    assert_eq!(ideal(600), Some(600));
    assert_eq!(ideal(601), None);
    // 12 × 40 and 24 × 20 have the same area: the one with fewer SMs is chosen.
    assert_eq!(points.ideal(Rate(400)).unwrap().sm, 1_200);
}
