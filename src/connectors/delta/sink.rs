//! One partition's writer into a Delta table.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::super::parquet::FileOptions;
use super::super::parquet::columns::Columns;
use super::super::parquet::encoder::Encoder;
use super::super::parquet::files::{Finished, Place};
use super::actions::Add;
use super::committer::{Committer, Part};
use super::schema::Fit;
use super::stats;
use crate::clock;
use crate::flow::{
    AppId, Epoch, Opened, PartitionId, Prepared, Probed, Rejected, Result, Rows, Sink, SinkContext, SinkFactory,
    SinkInstance, StageError,
};
use crate::objects::blocking;

/// A Delta table.
pub(super) struct TableSink {
    pub(super) context: SinkContext,
    pub(super) committer: Arc<Committer>,
    pub(super) options: FileOptions,
}

#[async_trait]
impl SinkFactory for TableSink {
    fn sink(&self, partition: &PartitionId) -> SinkInstance {
        SinkInstance::ExactlyOnce(Box::new(Writer {
            context: self.context.clone(),
            app_id: AppId::new(&self.context, partition),
            committer: self.committer.clone(),
            options: self.options.clone(),
            fit: None,
            encoder: None,
        }))
    }

    async fn probe(&self, adopted: bool) -> Result<Probed> {
        let (committer, app_id) = (self.committer.clone(), AppId::new(&self.context, &PartitionId::new("", 0)));
        blocking(move || committer.probe(&app_id, adopted)).await
    }
}

/// A prepared epoch, as it stands in the checkpoint log.
#[derive(Serialize, Deserialize)]
struct Payload {
    files: Vec<Add>,
}

struct Writer {
    context: SinkContext,
    app_id: AppId,
    committer: Arc<Committer>,
    options: FileOptions,
    /// How our rows fit into the table; known when it is open.
    fit: Option<Fit>,
    /// Made with the first row; away while an epoch is made durable.
    encoder: Option<Encoder>,
}

#[async_trait]
impl Sink for Writer {
    async fn open(&mut self, adopted: bool) -> Result<Opened> {
        let (committer, app_id) = (self.committer.clone(), self.app_id.clone());
        let (opened, fit) = blocking(move || committer.open(&app_id, adopted)).await?;
        self.fit = Some(fit);
        Ok(opened)
    }

    async fn write(&mut self, rows: &Rows) -> Result<Vec<Rejected>> {
        if self.encoder.is_none() {
            let fit = self.fit.as_ref().ok_or_else(|| StageError::retry("the table is not open"))?;
            let columns = Columns::new(&self.context.schema, fit.columns.clone());
            self.encoder = Some(Encoder::new(
                self.committer.root().to_path_buf(),
                Place::Final,
                Arc::new(columns),
                &fit.partition_by,
                self.options.clone(),
            )?);
        }
        match &mut self.encoder {
            Some(encoder) => encoder.write(&rows.columns),
            None => Ok(Vec::new()),
        }
    }

    async fn prepare(&mut self, _epoch: Epoch) -> Result<Option<Prepared>> {
        let Some(mut encoder) = self.encoder.take_if(|encoder| !encoder.is_empty()) else { return Ok(None) };
        let Some(fit) = self.fit.clone() else { return Ok(None) };
        let (encoder, rows, payload) = blocking(move || {
            let finished = encoder.finish()?;
            let rows = finished.iter().map(|file| file.rows).sum();
            let files = finished.into_iter().map(|file| add(file, &fit)).collect();
            Ok((encoder, rows, serde_json::json!(Payload { files }).to_string()))
        })
        .await?;
        self.encoder = Some(encoder);
        Ok(Some(Prepared { rows, payload }))
    }

    async fn commit(&mut self, epoch: Epoch, base: Epoch, prepared: &Prepared, group: usize) -> Result<()> {
        let Payload { files } = serde_json::from_str(&prepared.payload).map_err(|e| {
            StageError::park(format!("epoch {epoch} in the checkpoint log was not prepared by a delta sink")).because(e)
        })?;
        self.committer.commit(Part { app_id: self.app_id.clone(), epoch, base, files }, group).await
    }
}

/// The action that brings a file into the table.
fn add(file: Finished, fit: &Fit) -> Add {
    let path: Vec<_> = file.relative.iter().map(|part| part.to_string_lossy()).collect();
    Add {
        // Names on disk are made of characters that a URL takes, and of percent signs of their own encoding.
        path: path.join("/").replace('%', "%25"),
        partition_values: fit.partition_by.iter().cloned().zip(file.values).collect::<BTreeMap<_, _>>(),
        size: file.size,
        modification_time: clock::wall_millis(),
        data_change: true,
        stats: stats::of(&file.metadata, fit.indexed).to_string(),
    }
}
