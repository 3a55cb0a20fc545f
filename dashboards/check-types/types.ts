// The types of Weir's dashboards: those of @grafana/schema, combined where it leaves them open. Its Panel accepts any `options`, any
// `fieldConfig.defaults.custom`, any value in an override and any target; here each kind of panel has its own types.
import type { Dashboard, DataQuery, FieldConfig, FieldConfigSource, Panel, RowPanel, VariableModel } from '@grafana/schema';
import type * as heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as stateTimeline from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// T in its JSON form, with enums as their values: TypeScript does not accept a string for a member of a string enum.
type Json<T> = 0 extends 1 & T
  ? T // any
  : unknown extends T
    ? T
    : T extends string
      ? `${T}`
      : T extends number
        ? `${T}` extends `${infer N extends number}`
          ? N
          : never
        : T extends readonly (infer Element)[]
          ? Json<Element>[]
          : T extends object
            ? { [Key in keyof T]: Json<T[Key]> }
            : T;

// T with some of its keys replaced, as one object: that keeps TypeScript's errors readable.
type Replace<T, Replaced> = Omit<T, keyof Replaced> & Replaced extends infer Joined ? { [Key in keyof Joined]: Joined[Key] } : never;

// @grafana/schema has no Prometheus query since Grafana moved that data source into a separate package with another licence. These are
// the keys that Weir uses or may use.
type Target = Replace<
  Json<DataQuery>,
  {
    expr: string;
    format?: 'time_series' | 'table' | 'heatmap';
    instant?: boolean;
    range?: boolean;
    legendFormat?: string;
    interval?: string;
    exemplar?: boolean;
  }
>;

// The query of a variable.
type VariableQuery = { query: string; refId: string; qryType?: number };

// The properties that an override may set: `unit`, or `custom.lineWidth`.
type Property<Custom> =
  | { [Key in Exclude<keyof FieldConfig, 'custom'>]-?: { id: Key; value?: Json<FieldConfig[Key]> } }[Exclude<keyof FieldConfig, 'custom'>]
  | { [Key in keyof Custom & string]-?: { id: `custom.${Key}`; value?: Json<Custom[Key]> } }[keyof Custom & string];

type Fields<Custom> = Replace<
  Json<FieldConfigSource>,
  {
    defaults: Replace<Json<FieldConfig>, { custom?: Json<Custom> }>;
    overrides: Replace<Json<FieldConfigSource>['overrides'][number], { properties: Property<Custom>[] }>[];
  }
>;

type Typed<Kind extends string, Options, Custom> = Replace<
  Json<Panel>,
  { type: Kind; options: Json<Options>; fieldConfig: Fields<Custom>; targets: Target[] }
>;

// The custom fields of a plugin that has none.
type None = Record<string, never>;

export interface Panels {
  heatmap: Typed<'heatmap', heatmap.Options, heatmap.FieldConfig>;
  stat: Typed<'stat', stat.Options, None>;
  'state-timeline': Typed<'state-timeline', stateTimeline.Options, stateTimeline.FieldConfig>;
  table: Typed<'table', table.Options, table.FieldConfig>;
  timeseries: Typed<'timeseries', timeseries.Options, timeseries.FieldConfig>;
  row: Replace<Json<RowPanel>, { panels: Exclude<Panels[keyof Panels], { type: 'row' }>[] }>;
}

export type Board = Replace<
  Json<Dashboard>,
  {
    panels: Panels[keyof Panels][];
    templating: { list: Replace<Json<VariableModel>, { query: string | VariableQuery }>[] };
  }
>;

// The package's own dashboard type, which Board must satisfy.
export type Schema = Json<Dashboard>;
