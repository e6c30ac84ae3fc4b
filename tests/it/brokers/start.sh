#!/usr/bin/env bash
# Starts a broker that the tests did not write, on the loopback interface, with its data in FOLDER:
#
#     start.sh rabbitmq|artemis FOLDER PORT SECOND-PORT THIRD-PORT
#
# prints "ready" when the port accepts. Whoever starts it holds the other end of its standard input. A line with the name
# of a signal sends that to the broker and waits for its end; FOLDER can then be started again. The end of the input,
# however it comes, kills the broker and removes FOLDER: it outlives nobody. What the broker says is in FOLDER/output.
# User `app`, password `let-me-in-7`; queues `texts`, `bytes` and `DLQ`, where dead letters go; no other queue is made by asking
# for it. Deliveries are attempted without limit.
set -euo pipefail

kind=$1 folder=$2 port=$3 second=$4 third=$5
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=$("$here/install.sh" "$kind") || {
    echo "$home" >&2
    exit 1
}

# Second port: the distribution's; third: that of epmd.
rabbitmq() {
    cat >"$folder/rabbitmq.conf" <<END
listeners.tcp.1 = 127.0.0.1:$port
amqp1_0.default_user = none
load_definitions = $folder/definitions.json
disk_free_limit.absolute = 10MB
END
    # The hash is that of the password above.
    cat >"$folder/definitions.json" <<END
{ "vhosts": [{ "name": "/" }],
  "users": [{ "name": "app", "password_hash": "kI3GCitcmjkZNZh2fnE3LP2jXFn/Fuquo3W8pSOxtzEKlFiF",
              "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "" }],
  "permissions": [{ "user": "app", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*" }],
  "queues": [
$(for queue in texts bytes; do
        echo "    { \"name\": \"$queue\", \"vhost\": \"/\", \"durable\": true, \"auto_delete\": false,
      \"arguments\": { \"x-dead-letter-exchange\": \"\", \"x-dead-letter-routing-key\": \"DLQ\" } },"
    done)
    { "name": "DLQ", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {} }] }
END
    echo '[rabbitmq_amqp1_0].' >"$folder/enabled_plugins"
    # The cookie lies in the home folder.
    export HOME=$folder PATH=$home/usr/lib/erlang/bin:$PATH
    export ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT=$third
    export RABBITMQ_NODENAME=test@localhost RABBITMQ_DIST_PORT=$second
    export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}'
    export RABBITMQ_CONF_ENV_FILE=$folder/none RABBITMQ_CONFIG_FILE=$folder/rabbitmq.conf
    export RABBITMQ_ENABLED_PLUGINS_FILE=$folder/enabled_plugins RABBITMQ_PID_FILE=$folder/pid
    export RABBITMQ_MNESIA_BASE=$folder/mnesia RABBITMQ_LOG_BASE=$folder/log RABBITMQ_LOGS=-
    # As under systemd: the server in the place of its script, which would start another one to stop it.
    export RUNNING_UNDER_SYSTEMD=true
    # Started by the server itself it would be a daemon that stays.
    epmd &
    exec "$home/usr/lib/rabbitmq/bin/rabbitmq-server"
}

artemis() {
    if [ ! -d "$folder/etc" ]; then
        "$home/bin/artemis" create --silent --force --no-web --no-autotune --nio --user app --password let-me-in-7 --require-login \
            --name test "$folder" >"$folder/created" || { cat "$folder/created"; exit 1; }
    fi
    cat >"$folder/etc/broker.xml" <<END
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>test</name>
    <journal-type>NIO</journal-type>
    <paging-directory>data/paging</paging-directory>
    <bindings-directory>data/bindings</bindings-directory>
    <journal-directory>data/journal</journal-directory>
    <large-messages-directory>data/large-messages</large-messages-directory>
    <!-- How full a developer's disk is does not matter here. -->
    <max-disk-usage>100</max-disk-usage>
    <acceptors>
      <acceptor name="amqp">tcp://127.0.0.1:$port?protocols=AMQP;amqpCredits=1000;amqpLowCredits=300</acceptor>
    </acceptors>
    <security-settings>
      <security-setting match="#">
        <permission type="consume" roles="amq"/>
        <permission type="send" roles="amq"/>
      </security-setting>
    </security-settings>
    <address-settings>
      <address-setting match="#">
        <dead-letter-address>DLQ</dead-letter-address>
        <max-delivery-attempts>-1</max-delivery-attempts>
        <auto-create-queues>false</auto-create-queues>
        <auto-create-addresses>false</auto-create-addresses>
      </address-setting>
    </address-settings>
    <addresses>
$(for queue in texts bytes DLQ; do
        echo "      <address name=\"$queue\"><anycast><queue name=\"$queue\"/></anycast></address>"
    done)
    </addresses>
  </core>
</configuration>
END
    exec "$folder/bin/artemis" run
}

mkdir -p "$folder"
# A process group of its own for the broker and all it starts.
set -m
"$kind" </dev/null >>"$folder/output" 2>&1 &
group=$!
set +m
# The name of a signal, or nothing at the end of the input.
signal=

# However this ends, nothing stays: not even a message about what was killed.
end() {
    set +e
    exec 2>/dev/null
    kill -s KILL -- "-$group"
    wait "$group"
    if [ ! "$signal" ]; then
        rm -rf "$folder"
    fi
}
trap end EXIT

until (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    if ! kill -0 "$group" 2>/dev/null || [ "$SECONDS" -gt 120 ]; then
        tail -n 30 "$folder/output" >&2
        exit 1
    fi
    read -r -t 0.02 signal || [ $? -gt 128 ] || exit 1
done
echo ready
if read -r signal; then
    kill -s "$signal" -- "-$group"
    # One that hangs in its end is killed.
    timeout 60 tail --pid="$group" -s 0.05 -f /dev/null || kill -s KILL -- "-$group"
    wait "$group" 2>/dev/null || true
fi
