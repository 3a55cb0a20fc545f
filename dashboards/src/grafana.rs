//! The subset of Grafana's classic dashboard model that Weir's dashboards use, schema version 39.

use serde_json::{Value, json};

/// `schemaVersion` of dashboards, which Grafana 10.4 and newer accept.
pub const SCHEMA_VERSION: u32 = 39;
/// Number of columns of a dashboard's grid.
const COLUMNS: u32 = 24;

/// A dashboard: rows of panels, with variables.
#[derive(Debug, Clone)]
pub struct Board {
    /// Stable uid, by which links name the dashboard.
    pub uid: &'static str,
    /// Title shown by Grafana.
    pub title: &'static str,
    /// The question that the dashboard answers.
    pub description: &'static str,
    /// Template variables of the dashboard in addition to `datasource`, `job` and `instance`.
    pub variables: Vec<Variable>,
    /// Rows of panels, from the top.
    pub rows: Vec<Row>,
}

/// A template variable with the values of a label.
#[derive(Debug, Clone)]
pub struct Variable {
    /// Name of the variable and of its label.
    pub name: &'static str,
    /// Selector of the series whose label values are offered.
    pub series: &'static str,
    /// Whether all values can be chosen at once, which is then the default.
    pub has_all: bool,
}

/// A heading with its panels.
#[derive(Debug, Clone)]
pub struct Row {
    /// Text of the heading.
    pub title: &'static str,
    /// Panels from the left; they wrap.
    pub panels: Vec<Panel>,
}

/// The visualization of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawing {
    /// Lines over time, one for each series.
    Lines,
    /// Stacked areas over time.
    Stack,
    /// The current value as a number.
    Stat,
    /// Rows of labels and values.
    Table,
    /// Histogram buckets over time.
    Heatmap,
    /// Values over time as coloured bars.
    States,
}

/// The unit of a panel's values, one of Grafana's unit ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are Grafana's")]
pub enum Unit {
    Short,
    Seconds,
    Ratio,
    Bytes,
    RequestsPerSecond,
    PerSecond,
    Currency,
}

impl Unit {
    const fn id(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Seconds => "s",
            Self::Ratio => "percentunit",
            Self::Bytes => "bytes",
            Self::RequestsPerSecond => "reqps",
            Self::PerSecond => "cps",
            Self::Currency => "none",
        }
    }
}

/// A panel with its queries and display options.
#[derive(Debug, Clone)]
pub struct Panel {
    drawing: Drawing,
    title: &'static str,
    description: &'static str,
    unit: Unit,
    targets: Vec<(String, &'static str)>,
    thresholds: Vec<(f64, &'static str)>,
    base: &'static str,
    columns: u32,
    lines: u32,
    link: &'static str,
    states: Vec<(&'static str, &'static str, &'static str)>,
}

impl Panel {
    /// Returns a panel without a query. `description` contains what to do about unusual values.
    #[must_use]
    pub const fn new(
        drawing: Drawing,
        title: &'static str,
        unit: Unit,
        description: &'static str,
    ) -> Self {
        let (columns, lines) = match drawing {
            Drawing::Stat => (6, 4),
            _ => (12, 8),
        };
        Self {
            drawing,
            title,
            description,
            unit,
            targets: Vec::new(),
            thresholds: Vec::new(),
            base: "green",
            columns,
            lines,
            link: "weir-health",
            states: Vec::new(),
        }
    }

    /// Adds a query; `legend` is a template of labels.
    #[must_use]
    pub fn query(mut self, expr: impl Into<String>, legend: &'static str) -> Self {
        self.targets.push((expr.into(), legend));
        self
    }

    /// Adds a threshold: values from `value` on are shown in `colour`.
    #[must_use]
    pub fn threshold(mut self, value: f64, colour: &'static str) -> Self {
        self.thresholds.push((value, colour));
        self
    }

    /// Sets the colour below the first threshold, which is green by default.
    #[must_use]
    pub const fn base(mut self, colour: &'static str) -> Self {
        self.base = colour;
        self
    }

    /// Sets the panel's size: `columns` of 24, and `lines`.
    #[must_use]
    pub const fn size(mut self, columns: u32, lines: u32) -> Self {
        self.columns = columns;
        self.lines = lines;
        self
    }

    /// Sets the uid of the dashboard to look at next.
    #[must_use]
    pub const fn link(mut self, uid: &'static str) -> Self {
        self.link = uid;
        self
    }

    /// Adds a mapping of a value to a text and colour.
    #[must_use]
    pub fn state(mut self, value: &'static str, text: &'static str, colour: &'static str) -> Self {
        self.states.push((value, text, colour));
        self
    }

    const fn kind(&self) -> &'static str {
        match self.drawing {
            Drawing::Lines | Drawing::Stack => "timeseries",
            Drawing::Stat => "stat",
            Drawing::Table => "table",
            Drawing::Heatmap => "heatmap",
            Drawing::States => "state-timeline",
        }
    }

    fn json(&self, id: u32, (x, y): (u32, u32)) -> Value {
        let is_instant = matches!(self.drawing, Drawing::Table | Drawing::Stat);
        let targets: Vec<_> = self
            .targets
            .iter()
            .zip('A'..='Z')
            .map(|((expr, legend), name)| {
                let format = match self.drawing {
                    Drawing::Table => "table",
                    Drawing::Heatmap => "heatmap",
                    _ => "time_series",
                };
                json!({
                    "refId": name.to_string(),
                    "datasource": datasource(),
                    "expr": expr,
                    "legendFormat": legend,
                    "format": format,
                    "instant": is_instant,
                    "range": !is_instant,
                })
            })
            .collect();
        let steps: Vec<_> = std::iter::once(json!({"color": self.base, "value": null}))
            .chain(
                self.thresholds
                    .iter()
                    .map(|(value, color)| json!({"color": color, "value": value})),
            )
            .collect();
        let mappings: Vec<_> = self
            .states
            .iter()
            .enumerate()
            .map(|(index, (value, text, color))| {
                let shown = json!({"text": text, "color": color, "index": index});
                json!({"type": "value", "options": {*value: shown}})
            })
            .collect();
        let mut panel = json!({
            "id": id,
            "type": self.kind(),
            "title": self.title,
            "description": self.description,
            "datasource": datasource(),
            "gridPos": {"x": x, "y": y, "w": self.columns, "h": self.lines},
            "targets": targets,
            "links": [{
                "title": "Where to look next",
                "type": "link",
                "url": format!("/d/{}?${{__url_time_range}}&${{datasource:queryparam}}", self.link),
                "icon": "",
                "tooltip": "",
                "tags": [],
                "asDropdown": false,
                "includeVars": false,
                "keepTime": false,
                "targetBlank": false,
            }],
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit.id(),
                    "thresholds": {"mode": "absolute", "steps": steps},
                    "mappings": mappings,
                    "custom": self.custom(),
                },
                "overrides": [],
            },
            "options": self.options(),
        });
        if self.drawing == Drawing::Table {
            // All queries are merged into one table; the time of an instant query has no meaning.
            panel["transformations"] = json!([
                {"id": "merge", "options": {}},
                {"id": "organize", "options": {"excludeByName": {"Time": true}}},
            ]);
        }
        panel
    }

    fn custom(&self) -> Value {
        match self.drawing {
            Drawing::Lines | Drawing::Stack => {
                let is_stack = self.drawing == Drawing::Stack;
                json!({
                    "drawStyle": "line",
                    "lineWidth": 1,
                    "fillOpacity": if is_stack { 60 } else { 0 },
                    "showPoints": "never",
                    "spanNulls": false,
                    "stacking": {"mode": if is_stack { "normal" } else { "none" }, "group": "A"},
                    "thresholdsStyle": {"mode": if self.thresholds.is_empty() { "off" } else { "line" }},
                })
            }
            Drawing::States => json!({"fillOpacity": 80, "lineWidth": 0}),
            Drawing::Table => {
                json!({"align": "auto", "cellOptions": {"type": "auto"}, "inspect": false})
            }
            Drawing::Stat | Drawing::Heatmap => json!({}),
        }
    }

    fn options(&self) -> Value {
        match self.drawing {
            Drawing::Lines | Drawing::Stack => json!({
                "legend": {"showLegend": true, "displayMode": "list", "placement": "bottom", "calcs": []},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }),
            Drawing::Stat => json!({
                "colorMode": "value",
                "graphMode": "none",
                "justifyMode": "auto",
                "textMode": "auto",
                "percentChangeColorMode": "standard",
                "showPercentChange": false,
                "wideLayout": true,
                "orientation": "auto",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
            }),
            Drawing::Table => json!({
                "showHeader": true,
                "cellHeight": "sm",
                "frameIndex": 0,
            }),
            Drawing::Heatmap => json!({
                "calculate": false,
                "yAxis": {"unit": self.unit.id()},
                "color": {
                    "mode": "scheme", "scheme": "Oranges", "fill": "dark-orange", "exponent": 0.5,
                    "steps": 64, "reverse": false,
                },
                "cellGap": 1,
                "showValue": "never",
                "legend": {"show": true},
                "tooltip": {"mode": "single", "yHistogram": false},
                "exemplars": {"color": "rgba(255,0,255,0.7)"},
                "rowsFrame": {"layout": "auto"},
                "filterValues": {"le": 1e-9},
            }),
            Drawing::States => json!({
                "mergeValues": true,
                "showValue": "auto",
                "alignValue": "left",
                "rowHeight": 0.8,
                "legend": {"showLegend": true, "displayMode": "list", "placement": "bottom", "calcs": []},
                "tooltip": {"mode": "single", "sort": "none"},
            }),
        }
    }
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

impl Variable {
    /// Returns a variable with all values chosen at first.
    #[must_use]
    pub const fn all(name: &'static str, series: &'static str) -> Self {
        Self {
            name,
            series,
            has_all: true,
        }
    }

    /// Returns a variable with exactly one chosen value.
    #[must_use]
    pub const fn one(name: &'static str, series: &'static str) -> Self {
        Self {
            name,
            series,
            has_all: false,
        }
    }

    fn json(&self) -> Value {
        let query = format!("label_values({}, {})", self.series, self.name);
        let mut variable = json!({
            "name": self.name,
            "label": self.name,
            "type": "query",
            "datasource": datasource(),
            "query": {"query": query, "refId": "variable"},
            // Reload on a change of the time range, since instances come and go.
            "refresh": 2,
            "sort": 1,
            "regex": "",
            "multi": self.has_all,
            "includeAll": self.has_all,
            "options": [],
            "hide": 0,
            "skipUrlSync": false,
        });
        if self.has_all {
            variable["allValue"] = json!(".*");
            variable["current"] = json!({"selected": true, "text": "All", "value": "$__all"});
        }
        variable
    }
}

impl Board {
    /// Returns the dashboard in the JSON form imported by Grafana.
    #[must_use]
    pub fn json(&self) -> Value {
        let jobs = [
            Variable::all("job", "weir_build_info"),
            Variable::all("instance", "weir_build_info{job=~\"$job\"}"),
        ];
        let source = json!({
            "name": "datasource",
            "label": "datasource",
            "type": "datasource",
            "query": "prometheus",
            "options": [],
            "refresh": 1,
            "regex": "",
            "multi": false,
            "includeAll": false,
            "hide": 0,
            "skipUrlSync": false,
        });
        let variables = self.variables.iter().chain(&jobs).map(Variable::json);
        json!({
            "id": null,
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["weir"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": false,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "timepicker": {},
            "annotations": {"list": []},
            "templating": {"list": std::iter::once(source).chain(variables).collect::<Vec<_>>()},
            "links": [{
                "title": "Weir",
                "type": "dashboards",
                "tags": ["weir"],
                "asDropdown": true,
                "includeVars": false,
                "keepTime": true,
                "targetBlank": false,
                "icon": "external link",
                "tooltip": "Weir's dashboards",
                "url": "",
            }],
            "panels": self.panels(),
        })
    }

    fn panels(&self) -> Vec<Value> {
        let (mut all, mut id, mut y) = (Vec::new(), 0, 0);
        for row in &self.rows {
            id += 1;
            all.push(json!({
                "id": id,
                "type": "row",
                "title": row.title,
                "collapsed": false,
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
                "panels": [],
            }));
            y += 1;
            let (mut x, mut tallest) = (0, 0);
            for panel in &row.panels {
                if x + panel.columns > COLUMNS {
                    (x, y, tallest) = (0, y + tallest, 0);
                }
                id += 1;
                all.push(panel.json(id, (x, y)));
                x += panel.columns;
                tallest = tallest.max(panel.lines);
            }
            y += tallest;
        }
        all
    }
}
