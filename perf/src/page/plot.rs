//! Plots as SVG.

use heddle_base::units::Size;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

/// A curve of a chart.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// An axis of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// Numbers from 0, with this unit.
    Linear(&'static str),
    /// Positive numbers, with this unit, a factor apart.
    Log(&'static str),
    /// Bytes of a message, a factor apart.
    Size,
    /// The number of times of which one is longer: 10 is the 90th percentile, 100 the 99th.
    Percentile,
}

impl Axis {
    fn is_log(self) -> bool {
        !matches!(self, Axis::Linear(_))
    }

    fn title(self) -> &'static str {
        match self {
            Axis::Linear(unit) | Axis::Log(unit) => unit,
            Axis::Size => "bytes of a message",
            Axis::Percentile => "percentile",
        }
    }

    fn label(self, v: f64) -> String {
        match self {
            Axis::Size => {
                // A float that is too large saturates.
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "saturates"
                )]
                let bytes = v.round() as u32;
                Size(bytes).to_string()
            }
            Axis::Percentile => format!("{} %", trimmed(100.0 - 100.0 / v.max(1.0))),
            Axis::Linear(_) | Axis::Log(_) => trimmed(v),
        }
    }

    /// Returns the range that holds all values; `None` without a value.
    fn range(self, values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
        let (low, high) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        if !low.is_finite() || !high.is_finite() {
            return None;
        }
        Some(match self {
            Axis::Linear(_) => (0.0, if high > 0.0 { high * 1.1 } else { 1.0 }),
            Axis::Size => (low / 1.2, high * 1.2),
            // Only powers of ten have labels, so the range ends at such.
            Axis::Log(_) | Axis::Percentile => {
                let low = low.log10().floor();
                (10f64.powf(low), 10f64.powf(high.log10().ceil().max(low + 1.0)))
            }
        })
    }

    /// Returns true if the axis has a place for the value.
    fn has(self, v: f64) -> bool {
        v.is_finite() && v < 1e18 && if self.is_log() { v > 0.0 } else { v >= 0.0 }
    }
}

/// Returns a number with few digits.
fn trimmed(v: f64) -> String {
    let text = if v.abs() >= 1000.0 { format!("{v:.0}") } else { format!("{v:.4}") };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A chart: curves over two axes.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    title: String,
    x: Axis,
    y: Axis,
    curves: Vec<Curve>,
}

const WIDTH: u32 = 820;
const HEIGHT: u32 = 360;

impl Chart {
    /// Makes a chart of the points for which the axes have a place.
    pub(super) fn new(title: &str, x: Axis, y: Axis, curves: Vec<Curve>) -> Chart {
        let mut curves = curves;
        for curve in &mut curves {
            curve.points.retain(|p| x.has(p.0) && y.has(p.1));
        }
        curves.retain(|c| !c.points.is_empty());
        Chart { title: title.to_owned(), x, y, curves }
    }

    /// Returns the chart as an element of SVG; `None` without a point.
    pub(super) fn svg(&self) -> Option<String> {
        let points = || self.curves.iter().flat_map(|c| c.points.iter());
        let x = self.x.range(points().map(|p| p.0))?;
        let y = self.y.range(points().map(|p| p.1))?;
        let mut text = String::new();
        let base = |axis: Axis| if axis == Axis::Size { 2.0 } else { 10.0 };
        let log = |(low, high): (f64, f64), axis: Axis| (low..high).log_scale().base(base(axis));
        let drawn = match (self.x.is_log(), self.y.is_log()) {
            (true, true) => self.draw(&mut text, log(x, self.x), log(y, self.y)),
            (true, false) => self.draw(&mut text, log(x, self.x), y.0..y.1),
            (false, true) => self.draw(&mut text, x.0..x.1, log(y, self.y)),
            (false, false) => self.draw(&mut text, x.0..x.1, y.0..y.1),
        };
        drawn.ok().map(|()| text)
    }

    fn draw<X, Y>(&self, text: &mut String, x: X, y: Y) -> Result<(), Box<dyn std::error::Error>>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let root = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(|e| e.to_string())?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y)
            .map_err(|e| e.to_string())?;
        chart
            .configure_mesh()
            .x_desc(self.x.title())
            .y_desc(self.y.title())
            .x_label_formatter(&|v| self.x.label(*v))
            .y_label_formatter(&|v| self.y.label(*v))
            .light_line_style(WHITE)
            .draw()
            .map_err(|e| e.to_string())?;
        for (n, curve) in self.curves.iter().enumerate() {
            let colour = Palette99::pick(n).to_rgba();
            // A single point is no line, so each curve has a mark at each of its points.
            let marks = curve.points.iter().map(|p| Circle::new(*p, 2, colour.filled()));
            chart.draw_series(marks).map_err(|e| e.to_string())?;
            let line = LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2));
            let drawn = chart.draw_series(line).map_err(|e| e.to_string())?;
            if self.curves.len() > 1 {
                drawn.label(&curve.name).legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
                });
            }
        }
        if self.curves.len() > 1 {
            chart
                .configure_series_labels()
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.4))
                .draw()
                .map_err(|e| e.to_string())?;
        }
        root.present().map_err(|e| e.to_string())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_chart_without_a_point_has_no_svg() {
        let curve = |points| vec![Curve { name: "c".into(), points }];
        let svg = |points| Chart::new("t", Axis::Size, Axis::Log("us"), curve(points)).svg();
        assert_eq!(svg(vec![]), None);
        assert_eq!(svg(vec![(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)]), None);
        let one = svg(vec![(8.0, 3.0)]).expect("a single point is a chart");
        assert!(one.starts_with("<svg") && one.trim_end().ends_with("</svg>"), "{one}");
    }

    #[test]
    fn test_chart_has_titles_and_escapes_names() {
        let curve = |name: &str, y| Curve { name: name.into(), points: vec![(1.0, y), (2.0, y)] };
        let curves = vec![curve("a<b", 1.0), curve("other", 2.0)];
        let chart = Chart::new("T & U", Axis::Linear("s"), Axis::Linear("Gb/s"), curves);
        let svg = chart.svg().expect("a chart");
        assert!(svg.contains("T &amp; U") && svg.contains("a&lt;b") && svg.contains("Gb/s"));
        assert!(!svg.contains("a<b"), "{svg}");
    }

    #[test]
    fn test_labels_have_few_digits() {
        assert_eq!(Axis::Size.label(65536.0), "64K");
        assert_eq!(
            (Axis::Percentile.label(1.0), Axis::Percentile.label(1000.0)),
            ("0 %".into(), "99.9 %".into())
        );
        assert_eq!(
            (Axis::Linear("s").label(0.5), Axis::Log("us").label(12345.6)),
            ("0.5".into(), "12346".into())
        );
    }
}
