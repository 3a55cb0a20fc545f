//! Tables and plots of an experiment.

use policy::{Span, Time};

use super::matrix::Matrix;
use super::spec::{Figure, Spec};
use simulator::report::{
    Activity, Attainment, Cell, Column, Line, Part, Section, Slots, Table, Turn,
};
use simulator::statistics::{Interval, Unit};

/// Length of the ledger's window that is drawn.
const WINDOW: Span = Span::from_secs(2);

/// Figure, heading and unit of each column of the table.
const COLUMNS: [(Figure, &str, Unit); 10] = [
    (Figure::Executed, "ran", Unit::Functions),
    (Figure::Compliant, "kept objective", Unit::Functions),
    (Figure::InTimePercent, "in time", Unit::Percent),
    (Figure::TailMs, "p98", Unit::Milliseconds),
    (Figure::TailOverObjective, "p98 / objective", Unit::Ratio),
    (Figure::LoadPercent, "slots busy", Unit::Percent),
    (Figure::Imbalance, "imbalance", Unit::Plain),
    (Figure::Charged, "charged / held", Unit::Ratio),
    (Figure::EvictionsPerLoad, "evicted / loaded", Unit::Ratio),
    (
        Figure::AllocationOverExecution,
        "allocation / execution p98",
        Unit::Ratio,
    ),
];

pub(super) fn section(id: &str, spec: &Spec, matrix: &Matrix) -> Section {
    let mut parts = Vec::new();
    if spec.functions.len() > 1 {
        parts.push(Part::Attainment(attainment(spec, matrix)));
    }
    parts.push(Part::Table(table(spec, matrix)));
    if let Some(slots) = picture(matrix) {
        parts.push(Part::Slots(slots));
    }
    let of = match matrix.seeds.len() {
        1 => "one seed".to_owned(),
        many => format!("{many} seeds, means with 95 % intervals"),
    };
    Section {
        title: id.to_owned(),
        text: format!("{}. {of}; the same arrivals for every rule.", spec.about),
        parts,
    }
}

fn attainment(spec: &Spec, matrix: &Matrix) -> Attainment {
    let lines = spec.rules.iter().map(|&rule| Line {
        name: rule.name().to_owned(),
        points: spec
            .functions
            .iter()
            .filter_map(|&functions| {
                let values = matrix.by_seed(rule, functions, Figure::CompliantPercent);
                let shares: Vec<f64> = values.iter().map(|percent| percent / 100.0).collect();
                let interval = Interval::of(&shares).ok()?;
                Some((f64::from(functions), interval.within(0.0, 1.0)))
            })
            .collect(),
    });
    Attainment {
        title: "Functions that keep their objective, over the number of functions".to_owned(),
        load_name: "functions".to_owned(),
        load_unit: Unit::Functions,
        share_name: "keep their objective".to_owned(),
        mark: None,
        chosen: None,
        lines: lines.filter(|line| !line.points.is_empty()).collect(),
    }
}

fn table(spec: &Spec, matrix: &Matrix) -> Table {
    let mut columns = vec![Column::text("rule"), Column::number("functions")];
    columns.extend(COLUMNS.iter().map(|(_, name, _)| Column::number(*name)));
    let mut rows = Vec::new();
    for &rule in &spec.rules {
        for &functions in &spec.functions {
            let mut row = vec![
                Cell::Text(rule.name().to_owned()),
                Cell::Number(f64::from(functions), Unit::Functions),
            ];
            for (figure, _, unit) in COLUMNS {
                let values = matrix.by_seed(rule, functions, figure);
                row.push(match (Interval::of(&values), values.first()) {
                    (Ok(interval), _) => {
                        let most = match unit {
                            Unit::Functions => f64::from(functions),
                            Unit::Percent => 100.0,
                            _ => f64::INFINITY,
                        };
                        Cell::Interval(interval.within(0.0, most), unit)
                    }
                    (Err(_), Some(&value)) => Cell::Number(value, unit),
                    (Err(_), None) => Cell::Nothing,
                });
            }
            rows.push(row);
        }
    }
    Table {
        title: "By rule and load".to_owned(),
        columns,
        rows,
    }
}

fn picture(matrix: &Matrix) -> Option<Slots> {
    let (outcome, names) = matrix.picture.as_ref()?;
    let from = outcome.taken.iter().map(|taken| taken.from).min()?;
    let slots = outcome
        .nodes
        .iter()
        .map(|node| node.busy.len())
        .sum::<usize>();
    let turns = outcome.taken.iter().flat_map(|taken| {
        let turn = |from: Time, to: Time, activity| Turn {
            slot: taken.slot as usize,
            holder: taken.function as usize,
            from,
            to,
            activity,
        };
        [
            turn(taken.from, taken.loaded, Activity::Load),
            turn(taken.loaded, taken.to, Activity::Compute),
        ]
    });
    Some(Slots {
        title: "GPU occupancy over time".to_owned(),
        from,
        to: from.after(WINDOW),
        slots: (0..slots).map(|slot| format!("GPU {slot}")).collect(),
        holders: names.clone(),
        turns: turns.filter(|turn| turn.from < turn.to).collect(),
    })
}
